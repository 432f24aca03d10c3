"""What models make of translations, their own and given ones: probabilities, alternatives, alignments, attention."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from itertools import islice
from typing import Literal, NamedTuple, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from const.token import BOS, BOS_ID, EOS, PAD_ID, UNK_ID
from layers.decoder_block import DecoderBlock
from layers.encoder_block import EncoderBlock
from layers.multi_head_attention import MultiHeadAttention
from layers.probe import recorded_weights
from models.transformer import Transformer
from utils.dataset.batch import padded, within_budget
from utils.dataset.masked import WholeWords
from utils.search.constraint import NEVER, Searchable, StateT, next_log_probs
from utils.search.translator import Translation, Translator
from utils.text.tokenizer import TokenizerPair, id_of_each

Links = list[tuple[int, int]]  # (source, target) positions, counted from 0
Tokens = tuple[Sequence[int], Sequence[str]]  # ids, and how they are shown
Ids = Sequence[Sequence[int]]  # of several texts, without <s> and </s>
X = TypeVar("X")

# Forced decoding: the log-probabilities of given translations, and of the alternatives at each position.

_TOKENS_PER_BATCH = 4096  # positions of the longer side, padding included; a longer pair is its own batch
_POSITIONS_AT_ONCE = 256  # whose logits are held


@torch.inference_mode()
def token_log_probs(model: Transformer, sources: Ids, targets: Ids) -> list[list[float]]:
    """Return the log-probability of each token of given translations, the final </s> included."""
    found: list[list[float]] = [[] for _ in sources]
    for rows, src, tgt in _batches(sources, targets, next(model.parameters()).device):
        x, given = model.hidden(src, tgt[:, :-1]), tgt[:, 1:]
        real = given != PAD_ID
        parts = zip(x[real].split(_POSITIONS_AT_ONCE), given[real][:, None].split(_POSITIONS_AT_ONCE), strict=True)
        each = [model.project(x).float().log_softmax(-1).gather(-1, ids)[:, 0] for x, ids in parts]
        log_probs = iter(torch.cat(each).tolist())
        for i in rows:
            found[i] = list(islice(log_probs, len(targets[i]) + 1))
    return found


def _batches(
    sources: Ids, targets: Ids, device: torch.device
) -> Iterator[tuple[list[int], Int[Tensor, "B S"], Int[Tensor, "B T"]]]:
    """Yield places, sources and targets, both with </s> and the latter with <s>, of pairs of about the same length."""
    lengths = [max(len(src), len(tgt)) + 1 for src, tgt in zip(sources, targets, strict=True)]
    for rows in within_budget(lengths, _TOKENS_PER_BATCH):
        src, tgt = padded([sources[i] for i in rows]), padded([targets[i] for i in rows], bos=True)
        yield rows, src.to(device), tgt.to(device)


@torch.inference_mode()
def alternatives(
    model: Searchable[StateT], src: Sequence[int], given: Sequence[int], k: int, device: torch.device
) -> list[list[tuple[int, float]]]:
    """Return the k likeliest tokens, with log-probabilities, at each position of a translation and after its end.

    Source and translation are ids without <s> and </s>; a small vocabulary has fewer than k.
    """
    found, state = [], model.start(padded([src]).to(device))
    for token in (BOS_ID, *given):
        logits, state = model.step(torch.tensor([token], device=device), state)
        likely, tokens = next_log_probs(logits)[0].topk(min(k, logits.size(-1)))
        pairs = zip(tokens.tolist(), likely.tolist(), strict=True)
        found.append([(token, log_prob) for token, log_prob in pairs if log_prob > NEVER])
    return found


# Attention: what every layer and head looks at, given a source text and its translation.

Kind = Literal["encoder", "decoder", "cross"]
KINDS: dict[Kind, str] = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}


class AttentionMap(NamedTuple):
    """What every head attends to, with the tokens that rows and columns stand for."""

    src_tokens: list[str]  # with </s>
    tgt_tokens: list[str]  # with </s>
    weights: dict[Kind, list[Tensor]]  # (H, rows, columns) for each layer, from the source upwards

    def rows(self, kind: Kind) -> list[str]:
        """Return the queries: source tokens, or the target tokens about to be predicted."""
        return self.src_tokens if kind == "encoder" else self.tgt_tokens

    def columns(self, kind: Kind) -> list[str]:
        """Return the keys: source tokens, or <s> and the target tokens before."""
        return [BOS, *self.tgt_tokens[:-1]] if kind == "decoder" else self.src_tokens


def attentions(model: Transformer) -> dict[Kind, list[MultiHeadAttention]]:
    """Return the attentions of each layer, from the source upwards; a BERT that reads the source comes first."""
    encoder = [*([] if model.bert is None else model.bert.encoder), *model.encoder]
    decoder = [cast(DecoderBlock, block) for block in model.decoder]
    return {
        "encoder": [block.self_attention for block in encoder if isinstance(block, EncoderBlock)],
        "decoder": [block.self_attention for block in decoder],
        "cross": [block.cross_attention for block in decoder],
    }


@contextmanager
def recorded_by_kind(model: Transformer) -> Iterator[dict[Kind, list[Tensor]]]:
    """Within the block, append the weights (B, H, T, S) of each layer to its list as it is called."""
    with ExitStack() as recorders:
        yield {kind: recorders.enter_context(recorded_weights(layers)) for kind, layers in attentions(model).items()}


@torch.inference_mode()
def attention_weights(model: Transformer, src: Sequence[int], tgt: Sequence[int]) -> dict[Kind, list[Tensor]]:
    """Return the weights (H, T, S) of each layer for ids without <s> and </s>, by forced decoding.

    Row t belongs to the prediction of token t, the last one to that of </s>; the last column is the source's </s>.
    """
    model.eval()
    device = next(model.parameters()).device
    with recorded_by_kind(model) as found:
        model.hidden(padded([src]).to(device), padded([tgt], bos=True)[:, :-1].to(device))
    return {kind: [weights[0].float().cpu() for weights in layers] for kind, layers in found.items()}


def row_entropy(weights: Float[Tensor, "... T S"]) -> Float[Tensor, "... T"]:
    """Return -Σₛ w log w in nats: 0 where a row has a single key, log S where it weighs all S equally."""
    return torch.special.entr(weights).sum(-1)


def attention_entropy(weights: Float[Tensor, "... T S"]) -> Float[Tensor, "..."]:
    """Return the mean entropy of the rows in nats: how widely a head spreads itself."""
    return row_entropy(weights).mean(-1)


def largest_entropy(kind: Kind, n_rows: int, n_columns: int) -> float:
    """Return the entropy of uniform attention: log S, or the mean of log 1 … S where each row sees one key more."""
    return sum(map(math.log, range(1, n_rows + 1))) / n_rows if kind == "decoder" else math.log(n_columns)


# Alignment by attention.


def align(models: Sequence[Transformer], sources: Ids, targets: Ids) -> list[Links]:
    """Link each target token to the source token that the decoder's last layer attends to most when predicting it.

    Attention is not alignment, but its mean over the heads of a layer can come close. The </s> of the source, where
    heads that have nothing to look for rest, is never chosen. An empty source has no links.
    """
    weights = mean_cross_attention(models, sources, targets)
    return [most_attended(found[:, :-1]) if source else [] for source, found in zip(sources, weights, strict=True)]


@torch.inference_mode()
def mean_cross_attention(models: Sequence[Transformer], sources: Ids, targets: Ids) -> list[Float[Tensor, "T S"]]:
    """Return how much the decoder's last layer attends to each source token when predicting each target token.

    The mean over models and heads; the last column is the source's </s>.
    """
    found = [torch.empty(0)] * len(sources)
    for rows, src, tgt in _batches(sources, targets, next(models[0].parameters()).device):
        by_model = []
        for model in models:
            with recorded_weights(attentions(model)["cross"][-1:]) as recorded:
                model.hidden(src, tgt[:, :-1])
            by_model.append(recorded[0].float().mean(1).cpu())
        for i, weights in zip(rows, torch.stack(by_model).mean(0), strict=True):
            found[i] = weights[: len(targets[i]), : len(sources[i]) + 1]
    return found


def most_attended(weights: Float[Tensor, "T S"]) -> Links:
    """Link each target position to the source position with the largest weight."""
    return [(source, target) for target, source in enumerate(weights.argmax(-1).tolist())]


class WordAlignment(NamedTuple):
    """The words of a pair, and links between them."""

    source: list[str]
    target: list[str]
    links: Links


class WordAligner:
    """Joins tokens, and the links between them, to words.

    Words are separated by spaces; in scripts without spaces each token is a word, since the text marks no others. A
    space that is a token by itself (SentencePiece's lone ▁) is not a word, and links to it are dropped.
    """

    def __init__(self, tokenizers: TokenizerPair) -> None:
        self._source, self._target = map(WholeWords, tokenizers)

    def join(self, source: Tokens, target: Tokens, links: Links) -> WordAlignment:
        """Link two words where any of their tokens are linked; sorted by target word, then by source word."""
        of_source, source_words = _words(*source, self._source)
        of_target, target_words = _words(*target, self._target)
        pairs = {(of_source[i], of_target[j]) for i, j in links}
        linked = [(i, j) for i, j in pairs if i is not None and j is not None]
        return WordAlignment(source_words, target_words, sorted(linked, key=lambda link: (link[1], link[0])))


def _words(ids: Sequence[int], tokens: Sequence[str], whole_words: WholeWords) -> tuple[list[int | None], list[str]]:
    """Return the place of the word that each token belongs to, None for a lone space; and the words."""
    numbers = whole_words.numbers(np.array(ids, np.int64)).tolist()
    words = [""] * (max(numbers, default=-1) + 1)
    for number, token in zip(numbers, tokens, strict=True):
        words[number] += "".join(token.replace("▁", "").split())  # an ideographic space is a token, not a word
    places = {number: place for place, number in enumerate(n for n, word in enumerate(words) if word)}
    return [places.get(number) for number in numbers], [word for word in words if word]


# All of these for the texts of a translator.


class Judgement(NamedTuple):
    """The probability that the models assign to a translation."""

    tokens: list[str]  # of the target, with </s>
    log_probs: list[float]  # one for each token
    lost_tokens: int  # of source and target, beyond what the model can hold
    n_unknown: int  # target tokens that are not in the vocabulary

    @property
    def log_prob(self) -> float:
        """Log-probability of the whole translation."""
        return sum(self.log_probs)

    @property
    def perplexity(self) -> float:
        """Perplexity: exp of the mean negative log-probability of its tokens; 1 where there are none."""
        return math.exp(-self.log_prob / max(1, len(self.tokens)))


class Position(NamedTuple):
    """A position in a translation: the token that was generated there, and its alternatives."""

    number: int  # from 1
    token: str  # what was generated
    likeliest: list[tuple[str, float]]  # tokens and their log-probabilities, likeliest first


class Inspector:
    """Inspects the translations of a translator with its models, in single precision; several are an ensemble."""

    def __init__(self, translator: Translator, models: Sequence[Transformer]) -> None:
        self.translator = translator
        self.models = models
        self._src, self._tgt = translator.tokenizers
        self._tgt_ids = id_of_each(self._tgt)

    def source_tokens(self, translations: Sequence[Translation]) -> list[list[str]]:
        """Return the tokens of each text that were translated; unknown ones as they stand in the text."""
        tokens = self.translator.source_tokens
        return [[token for piece in one.pieces for token in tokens(piece)] for one in translations]

    def log_probs(self, translations: Sequence[Translation]) -> list[list[float]]:
        """Return the log-probability of each token of the best translations, with an </s> behind each piece."""
        return [[p for piece in pieces for p in piece] for pieces in self._by_piece(self._log_probs, translations)]

    def alignments(self, translations: Sequence[Translation]) -> list[Links]:
        """Return the alignments of the best translations; positions go on from piece to piece."""
        found = []
        for one, by_piece in zip(translations, self._by_piece(partial(align, self.models), translations), strict=True):
            links, source, target = [], 0, 0
            for piece, candidates, of_piece in zip(one.pieces, one.by_piece, by_piece, strict=True):
                links += [(source + i, target + j) for i, j in of_piece]
                source, target = source + len(piece.ids), target + len(candidates[0].tokens)
            found.append(links)
        return found

    def words(self, translations: Sequence[Translation]) -> list[WordAlignment]:
        """Return the words of each text and of its best translation; what was left unchanged is linked to itself."""
        found = []
        for one, by_piece in zip(translations, self._by_piece(partial(align, self.models), translations), strict=True):
            whole = WordAlignment([], [], [])
            for piece, (best, *_), links in zip(one.pieces, one.by_piece, by_piece, strict=True):
                if piece.ids:
                    target = [self._tgt_ids[token] for token in best.tokens], best.tokens
                    part = self._aligner.join((piece.ids, self.translator.source_tokens(piece)), target, links)
                else:
                    words = piece.source.split()
                    part = WordAlignment(words, words, [(i, i) for i in range(len(words))])
                n_source, n_target = len(whole.source), len(whole.target)
                whole.links.extend((n_source + i, n_target + j) for i, j in part.links)
                whole.source.extend(part.source)
                whole.target.extend(part.target)
            found.append(whole)
        return found

    @cached_property
    def _aligner(self) -> WordAligner:  # on first use, because it goes through the vocabularies
        return WordAligner(self.translator.tokenizers)

    def judge(self, texts: Sequence[str], given: Sequence[str]) -> list[Judgement]:
        """Score given translations by forced decoding; an empty translation of an empty text has no tokens."""
        all_sources, all_targets = self._src.encode(texts), self._tgt.encode(given)
        sources = [ids[: self.translator.window - 1] for ids in all_sources]
        targets = [ids[: self.translator.longest - 1] for ids in all_targets]
        found = []
        for i, log_probs in enumerate(self._log_probs(sources, targets)):
            source, target = sources[i], targets[i]
            lost = len(all_sources[i]) - len(source) + len(all_targets[i]) - len(target)
            judgement = Judgement([*self._tgt.tokens(target), EOS], log_probs, lost, target.count(UNK_ID))
            found.append(judgement if source or target else Judgement([], [], 0, 0))
        return found

    def positions(self, translation: Translation, k: int, prefix: str = "") -> list[Position]:
        """Return the k likeliest tokens at each position of a translation, or only at the one after a prefix."""
        pairs = zip(translation.pieces, translation.by_piece, strict=True)
        pieces = [(piece.ids, best.tokens) for piece, (best, *_) in pairs if piece.ids]
        if not pieces:
            raise ValueError("there is nothing that the model has translated: give a sentence to see its alternatives")
        begin = len(self._tgt.encode([prefix])[0]) if prefix else 0
        if prefix:
            pieces = [(pieces[0][0], pieces[0][1][: begin + 1])]
        rows: list[tuple[str, list[tuple[int, float]]]] = []
        for ids, tokens in pieces:
            given = [self._tgt_ids[token] for token in tokens]
            found = alternatives(self.translator.model, ids, given, k, self.translator.device)
            rows += zip([*tokens, EOS], found, strict=True)
        return [
            Position(number, token, [(self._tgt.tokens([i])[0], log_prob) for i, log_prob in likeliest])
            for number, (token, likeliest) in enumerate(rows[begin : begin + 1 if prefix else None], begin + 1)
        ]

    def _by_piece(
        self, measure: Callable[[Ids, Ids], list[list[X]]], translations: Sequence[Translation]
    ) -> list[list[list[X]]]:
        """Measure source and target ids of each piece of each best translation; nothing for one left unchanged."""
        pieces = [pair for one in translations for pair in zip(one.pieces, one.by_piece, strict=True)]
        known = [(piece.ids, best.tokens) for piece, (best, *_) in pieces if piece.ids]
        targets = [[self._tgt_ids[token] for token in tokens] for _, tokens in known]
        measured = iter(measure([ids for ids, _ in known], targets))
        return [[next(measured) if piece.ids else [] for piece in one.pieces] for one in translations]

    def _log_probs(self, sources: Ids, targets: Ids) -> list[list[float]]:
        """Return the log-probability of each target token; with several models, the log of the mean probability."""
        by_model = [token_log_probs(model, sources, targets) for model in self.models]
        together = [torch.tensor(rows).logsumexp(0) - math.log(len(rows)) for rows in zip(*by_model, strict=True)]
        return by_model[0] if len(by_model) == 1 else [row.tolist() for row in together]
