"""What models make of translations, their own and given ones: probabilities, alternatives, alignments, attention."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Literal, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from const.token import BOS, BOS_ID, EOS, UNK_ID
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

# Forced decoding: the log-probabilities of given translations, and of the alternatives at each position.

_POSITIONS_AT_ONCE = 256


@torch.inference_mode()
def token_log_probs(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    tokens_per_batch: int = 4096,
) -> list[list[float]]:
    """Return the log-probability of each token of given translations, the final </s> included.

    Args:
        model: a model in eval mode, packed or not.
        sources: source ids, without </s>.
        targets: target ids, without <s> and </s>.
        tokens_per_batch: most positions of a batch on either side, padding included; a longer pair is its own batch.
    """
    device = next(model.parameters()).device
    found: list[list[float]] = [[] for _ in sources]
    longer = [max(len(src), len(tgt)) + 1 for src, tgt in zip(sources, targets, strict=True)]
    lengths = [len(tgt) + 1 for tgt in targets]
    for rows in within_budget(longer, tokens_per_batch):
        src = padded([sources[i] for i in rows]).to(device)
        tgt = padded([targets[i] for i in rows], bos=True).to(device)
        x = model.hidden(src, tgt[:, :-1])
        said = tgt[:, 1:]
        real = torch.arange(said.size(1), device=device) < torch.tensor([[lengths[i]] for i in rows], device=device)
        log_probs = iter(_log_probs(model, x[real], said[real]).tolist())
        for i in rows:
            found[i] = [next(log_probs) for _ in range(lengths[i])]
    return found


@torch.inference_mode()
def alternatives(
    model: Searchable[StateT], src: Sequence[int], said: Sequence[int], k: int, device: torch.device
) -> list[list[tuple[int, float]]]:
    """Return the k likeliest tokens, with log-probabilities, at each position of a translation and after its end.

    Args:
        model: in eval mode.
        src: source ids, without </s>.
        said: target ids of the translation, without <s>.
        k: tokens per position, likeliest first; fewer where the vocabulary is smaller.
        device: where the model is.
    """
    found = []
    state = model.start(padded([src]).to(device))
    for token in (BOS_ID, *said):
        logits, state = model.step(torch.tensor([token], device=device), state)
        log_probs = next_log_probs(logits)[0]
        likely, tokens = log_probs.topk(min(k, len(log_probs)))
        pairs = zip(tokens.tolist(), likely.tolist(), strict=True)
        found.append([(token, log_prob) for token, log_prob in pairs if log_prob > NEVER])
    return found


def _log_probs(model: Transformer, x: Float[Tensor, "P D"], said: Int[Tensor, " P"]) -> Float[Tensor, " P"]:
    """Return the log-probability of each position's token, never holding the logits of all positions at once."""
    parts = zip(x.split(_POSITIONS_AT_ONCE), said[:, None].split(_POSITIONS_AT_ONCE), strict=True)
    return torch.cat([model.project(x).float().log_softmax(-1).gather(-1, said)[:, 0] for x, said in parts])


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
    """Return the weights (H, T, S) of each layer for a pair of id sequences, by forced decoding.

    Args:
        model: a model, packed or not; left in eval mode.
        src: ids without </s>; the last source position is that of </s>.
        tgt: ids without <s> and </s>; row t belongs to the prediction of token t (the last one: </s>).
    """
    model.eval()
    device = next(model.parameters()).device
    source, target = padded([src]).to(device), padded([tgt], bos=True)[:, :-1].to(device)
    with recorded_by_kind(model) as found:
        model.hidden(source, target)
    return {kind: [weights[0].float().cpu() for weights in layers] for kind, layers in found.items()}


def row_entropy(weights: Float[Tensor, "... T S"]) -> Float[Tensor, "... T"]:
    """Return -Σₛ w log w in nats: 0 where a row has a single key, log S where it weighs all S equally."""
    return torch.special.entr(weights).sum(-1)


def attention_entropy(
    weights: Float[Tensor, "... T S"], real: Bool[Tensor, " T"] | None = None
) -> Float[Tensor, "..."]:
    """Return the mean entropy of the rows (or of those that are real) in nats: how widely a head spreads itself."""
    rows = row_entropy(weights)
    return rows.mean(-1) if real is None else rows[..., real].mean(-1)


def largest_entropy(kind: Kind, n_rows: int, n_columns: int) -> float:
    """Return the entropy of uniform attention: log S, or the mean of log 1 … S where each row sees one key more."""
    if kind == "decoder":
        return torch.arange(1, n_rows + 1).log().mean().item()
    return torch.tensor(n_columns).log().item()


_TOKENS_PER_BATCH = 8192  # positions of the longer side, padding included

Links = list[tuple[int, int]]  # (source, target) positions, counted from 0


def align(
    models: Sequence[Transformer], sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> list[Links]:
    """Link each target token to the source token that the decoder's last layer attends to most when predicting it.

    Attention is not alignment, but its mean over the heads of a layer can come close. The </s> of the source, where
    heads that have nothing to look for rest, is never chosen. An empty source has no links.
    """
    weights = mean_cross_attention(models, sources, targets)
    return [most_attended(found[:, :-1]) if source else [] for source, found in zip(sources, weights, strict=True)]


@torch.inference_mode()
def mean_cross_attention(
    models: Sequence[Transformer], sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> list[Float[Tensor, "T S"]]:
    """Return how much the decoder's last layer attends to each source token when predicting each target token.

    Args:
        models: in eval mode; the weights of several are averaged.
        sources: ids without </s>.
        targets: their translations, without <s> and </s>.

    Returns:
        For each pair the mean over heads: a row for each target token, a column for each source token and its </s>.
    """
    found = [torch.empty(0)] * len(sources)
    lengths = [max(len(source), len(target)) + 1 for source, target in zip(sources, targets, strict=True)]
    for rows in within_budget(lengths, _TOKENS_PER_BATCH):
        src = padded([sources[i] for i in rows])
        tgt = padded([targets[i] for i in rows], bos=True)[:, :-1]
        weights = torch.stack([_last_weights(model, src, tgt) for model in models]).mean(0)
        for i, weight in zip(rows, weights, strict=True):
            found[i] = weight[: len(targets[i]), : len(sources[i]) + 1]
    return found


def most_attended(weights: Float[Tensor, "T S"]) -> Links:
    """Link each target position to the source position with the largest weight."""
    return [(source, target) for target, source in enumerate(weights.argmax(-1).tolist())]


def pharaoh(links: Links) -> str:
    """Write links as `0-0 1-2`: the format of Pharaoh, Moses and the aligners around them."""
    return " ".join(f"{source}-{target}" for source, target in links)


def _last_weights(model: Transformer, src: Tensor, tgt: Tensor) -> Tensor:
    """Return the weights (B, T, S) of the last cross-attention, averaged over heads."""
    device = next(model.parameters()).device
    with recorded_weights(attentions(model)["cross"][-1:]) as weights:
        model.hidden(src.to(device), tgt.to(device))
    return weights[0].mean(1).float().cpu()


class WordAlignment(NamedTuple):
    """The words of a pair, and links between them: (source, target) places, counted from 0."""

    source: list[str]
    target: list[str]
    links: Links


class WordAligner:
    """Joins tokens, and the links between them, to words.

    Words are separated by spaces; in scripts without spaces each token is a word, since the text marks no others. A
    space that is a token by itself (SentencePiece's lone ▁) is not a word, and links to it are dropped.

    Args:
        tokenizers: the tokenizers that the tokens come from.
    """

    def __init__(self, tokenizers: TokenizerPair) -> None:
        self._source, self._target = ((WholeWords(side), id_of_each(side)) for side in tokenizers)

    def join(self, source: Sequence[str], target: Sequence[str], links: Links) -> WordAlignment:
        """Link two words where any of their tokens are linked; sorted by target word, then by source word."""
        of_source, source_words = _words(source, *self._source)
        of_target, target_words = _words(target, *self._target)
        pairs = {(of_source[i], of_target[j]) for i, j in links}
        linked = [(i, j) for i, j in pairs if i is not None and j is not None]
        return WordAlignment(source_words, target_words, sorted(linked, key=lambda link: (link[1], link[0])))


def _words(
    tokens: Sequence[str], whole_words: WholeWords, ids: Mapping[str, int]
) -> tuple[list[int | None], list[str]]:
    """Return the place of the word that each token belongs to, None for a lone space; and the words."""
    numbers = whole_words.numbers(np.array([ids[token] for token in tokens], np.int64)).tolist()
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
        """Perplexity: exp of the mean negative log-probability of its tokens."""
        return perplexity(self.log_prob, len(self.tokens))


class Position(NamedTuple):
    """A position in a translation: the token that was generated there, and its alternatives."""

    number: int  # from 1
    token: str  # what was generated
    likeliest: list[tuple[str, float]]  # tokens and their log-probabilities, likeliest first


def perplexity(log_prob: float, n_tokens: int) -> float:
    """Return exp(-log p / n); 1 where there are no tokens."""
    return math.exp(-log_prob / n_tokens) if n_tokens else 1.0


class Inspector:
    """Inspects the translations of a translator with its models.

    Args:
        translator: the translator.
        models: the models that it translates with, in single precision; several are an ensemble.
    """

    def __init__(self, translator: Translator, models: Sequence[Transformer]) -> None:
        self.translator = translator
        self.models = models
        self._src, self._tgt = translator.tokenizers
        self._tgt_ids = id_of_each(self._tgt)

    def source_tokens(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the tokens of each text that are translated, for texts that are translated in one piece."""
        return [self._src.tokens(ids) for ids in self._source_ids(texts)]

    def log_probs(self, texts: Sequence[str], translations: Sequence[Translation]) -> list[list[float] | None]:
        """Return the log-probability of each token of the best translations, with </s>; None if not in one piece."""
        found = iter(self._log_probs(*self._pairs(texts, translations)))
        return [next(found) if translation.n_pieces == 1 else None for translation in translations]

    def alignments(self, texts: Sequence[str], translations: Sequence[Translation]) -> list[Links | None]:
        """Return the alignments of the best translations; None for one that was not translated in one piece."""
        found = iter(align(self.models, *self._pairs(texts, translations)))
        return [next(found) if translation.n_pieces == 1 else None for translation in translations]

    def judge(self, texts: Sequence[str], given: Sequence[str]) -> list[Judgement]:
        """Score given translations by forced decoding; an empty translation of an empty text has no tokens."""
        room = self.translator.longest - 1
        sources, targets = self._src.encode(texts), self._tgt.encode(given)
        held = [source[: self.translator.window - 1] for source in sources]
        said = [target[:room] for target in targets]
        lost = [
            len(source) - len(a) + len(target) - len(b)
            for source, a, target, b in zip(sources, held, targets, said, strict=True)
        ]
        return [
            Judgement([*self._tgt.tokens(ids), EOS], log_probs, n_lost, ids.count(UNK_ID))
            if source or ids
            else Judgement([], [], 0, 0)
            for source, ids, log_probs, n_lost in zip(held, said, self._log_probs(held, said), lost, strict=True)
        ]

    def positions(self, text: str, translation: Translation, k: int, prefix: str = "") -> list[Position]:
        """Return the k likeliest tokens at each position of a translation, or only at the one after a prefix."""
        if translation.n_pieces != 1:
            raise ValueError(f"translated in {translation.n_pieces} pieces: give one sentence to see its alternatives")
        (source,) = self._source_ids([text])
        said = [self._tgt_ids[token] for token in translation.candidates[0].tokens]
        tokens = [*translation.candidates[0].tokens, EOS]
        begin, end = 0, len(tokens)
        if prefix:
            begin = len(self._tgt.encode([prefix])[0])
            end = begin + 1
        found = alternatives(self.translator.model, source, said[: end - 1], k, self.translator.device)
        likeliest = [
            [(token, log_prob) for token, (_, log_prob) in zip(self._tgt.tokens([i for i, _ in one]), one, strict=True)]
            for one in found
        ]
        return [Position(t + 1, tokens[t], likeliest[t]) for t in range(begin, end)]

    def _source_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each source, truncated to the window."""
        return [ids[: self.translator.window - 1] for ids in self._src.encode(texts)]

    def _pairs(
        self, texts: Sequence[str], translations: Sequence[Translation]
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Return source and target ids of those that were translated in one piece."""
        whole = [i for i, translation in enumerate(translations) if translation.n_pieces == 1]
        targets = [[self._tgt_ids[token] for token in translations[i].candidates[0].tokens] for i in whole]
        return self._source_ids([texts[i] for i in whole]), targets

    def _log_probs(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the log-probability of each target token; with several models, the log of the mean probability."""
        by_model = [token_log_probs(model, sources, targets) for model in self.models]
        if len(by_model) == 1:
            return by_model[0]
        return [
            (torch.tensor(rows).logsumexp(0) - math.log(len(rows))).tolist() for rows in zip(*by_model, strict=True)
        ]
