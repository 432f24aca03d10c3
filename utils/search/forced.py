"""Forced decoding: how likely networks, and each of their layers, find given translations, and what they attend to."""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any, Literal, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from const.token import BOS, BOS_ID, PAD_ID
from layers.decoder_block import DecoderBlock
from layers.encoder_block import EncoderBlock
from layers.probe import recorded_calls, recorded_weights
from models.decoder_only import DecoderOnlyTranslator
from models.recurrent import RecurrentTranslator
from models.transformer import Transformer
from models.translation_model import TranslationModel
from utils.dataset.batch import padded
from utils.search.constraint import NEVER, Searchable, StateT, next_log_probs
from utils.search.searcher import Ids, within_budget

Links = list[tuple[int, int]]  # (source, target) positions, counted from 0

# The log-probabilities of given translations, and of the alternatives at each position.

_TOKENS_PER_BATCH = 4096  # positions of the longer side, padding included; a longer pair is its own batch
_POSITIONS_AT_ONCE = 256  # whose logits are held


@torch.inference_mode()
def token_log_probs(model: TranslationModel, sources: Ids, targets: Ids) -> list[list[float]]:
    """Return the log-probability of each token of given translations, the final </s> included."""
    log_probs: list[list[float]] = [[] for _ in sources]
    for rows, src, tgt in pair_batches(sources, targets, next(model.parameters()).device):
        x, given = model.hidden(src, tgt[:, :-1]), tgt[:, 1:]
        real = given != PAD_ID
        parts = zip(x[real].split(_POSITIONS_AT_ONCE), given[real][:, None].split(_POSITIONS_AT_ONCE), strict=True)
        likely = [model.output(x).float().log_softmax(-1).gather(-1, ids)[:, 0] for x, ids in parts]
        left = iter(torch.cat(likely).tolist())
        for i in rows:
            log_probs[i] = list(islice(left, len(targets[i]) + 1))
    return log_probs


def mean_log_probs(models: Sequence[TranslationModel], sources: Ids, targets: Ids) -> list[list[float]]:
    """Return the log of the models' mean probability of each token of given translations, the final </s> included."""
    by_model = [token_log_probs(model, sources, targets) for model in models]
    together = [torch.tensor(rows).logsumexp(0) - math.log(len(rows)) for rows in zip(*by_model, strict=True)]
    return by_model[0] if len(by_model) == 1 else [row.tolist() for row in together]


def pair_batches(
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
    positions, state = [], model.start(padded([src]).to(device))
    for token in (BOS_ID, *given):
        logits, state = model.step(torch.tensor([token], device=device), state)
        likely, tokens = next_log_probs(logits)[0].topk(min(k, logits.size(-1)))
        pairs = zip(tokens.tolist(), likely.tolist(), strict=True)
        positions.append([(token, log_prob) for token, log_prob in pairs if log_prob > NEVER])
    return positions


@torch.inference_mode()
def layer_guesses(model: TranslationModel, src: Sequence[int], tgt: Sequence[int]) -> Float[Tensor, "N T V"]:
    """Return what each of N decoder layers would already say: the logits of the next token at each position.

    The last norm and the output projection are applied to the output of every layer: the logit lens of nostalgebraist
    2020 (https://www.lesswrong.com/posts/AcKRB8wDpdaN6v6ru). The last layer's are the model's own.

    Args:
        model: in eval mode; a recurrent network has a single layer.
        src: ids without </s>.
        tgt: ids of a translation without <s> and </s>; row t is the guess at token t, the last one that at </s>.
    """
    device = next(model.parameters()).device
    pair = padded([src]).to(device), padded([tgt], bos=True)[:, :-1].to(device)
    if not isinstance(model, Transformer | DecoderOnlyTranslator):
        return model(*pair).float()
    with recorded_calls(model.decoder) as calls:
        model.hidden(*pair)
    of_target = calls[-len(model.decoder) :]  # a network without an encoder has read the source by the same layers
    return torch.cat([model.output(model.decoder_norm(x)).float() for _, (x, _past) in of_target])


# Attention: what every layer and head looks at, given a source text and its translation.

Kind = Literal["self", "encoder", "decoder", "cross"]
KINDS: dict[Kind, str] = {
    "self": "self-attention",  # of a BERT alone, whose tokens are both source and target
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


def attentions(model: TranslationModel) -> dict[Kind, list[Any]]:
    """Return the attentions of each layer, from the source upwards; a BERT that reads the source comes first.

    They are multi-head attentions; of a recurrent network, its decoder is what returns weights.
    """
    if isinstance(model, RecurrentTranslator):
        return {"cross": [model.decoder]}
    if not isinstance(model, Transformer):
        raise ValueError("a network without an encoder has no attention to the source alone: give a Transformer's run")
    encoder = [*([] if model.bert is None else model.bert.encoder), *model.encoder]
    decoder = [cast(DecoderBlock, block) for block in model.decoder]
    return {
        "encoder": [block.self_attention for block in encoder if isinstance(block, EncoderBlock)],
        "decoder": [block.self_attention for block in decoder],
        "cross": [block.cross_attention for block in decoder],
    }


@contextmanager
def recorded_by_kind(model: TranslationModel) -> Iterator[dict[Kind, list[Tensor]]]:
    """Within the block, append the weights (B, H, T, S) of each layer to its list as it is called."""
    with ExitStack() as recorders:
        yield {kind: recorders.enter_context(recorded_weights(layers)) for kind, layers in attentions(model).items()}


@torch.inference_mode()
def attention_weights(model: TranslationModel, src: Sequence[int], tgt: Sequence[int]) -> dict[Kind, list[Tensor]]:
    """Return the weights (H, T, S) of each layer for ids without <s> and </s>, by forced decoding.

    Row t belongs to the prediction of token t, the last one to that of </s>; the last column is the source's </s>.
    """
    model.eval()
    device = next(model.parameters()).device
    with recorded_by_kind(model) as recorded:
        model.hidden(padded([src]).to(device), padded([tgt], bos=True)[:, :-1].to(device))
    return {kind: [weights[0].float().cpu() for weights in layers] for kind, layers in recorded.items()}


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


def align(models: Sequence[TranslationModel], sources: Ids, targets: Ids, n_tags: int = 0) -> list[Links]:
    """Link each target token to the source token that the decoder's last layer attends to most when predicting it.

    Attention is not alignment, but its mean over the heads of a layer can come close. The </s> of the source, where
    heads that have nothing to look for rest, is never chosen, nor are the tags it begins with. An empty source has no
    links.
    """
    attention = mean_cross_attention(models, sources, targets)
    return [
        [(n_tags + i, j) for i, j in most_attended(weights[:, n_tags:-1])] if source else []
        for source, weights in zip(sources, attention, strict=True)
    ]


@torch.inference_mode()
def mean_cross_attention(models: Sequence[TranslationModel], sources: Ids, targets: Ids) -> list[Float[Tensor, "T S"]]:
    """Return how much the decoder's last layer attends to each source token when predicting each target token.

    The mean over models and heads; the last column is the source's </s>.
    """
    attention = [torch.empty(0)] * len(sources)
    for rows, src, tgt in pair_batches(sources, targets, next(models[0].parameters()).device):
        by_model = []
        for model in models:
            with recorded_weights(attentions(model)["cross"][-1:]) as recorded:
                model.hidden(src, tgt[:, :-1])
            by_model.append(recorded[0].float().mean(1).cpu())
        for i, weights in zip(rows, torch.stack(by_model).mean(0), strict=True):
            attention[i] = weights[: len(targets[i]), : len(sources[i]) + 1]
    return attention


def most_attended(weights: Float[Tensor, "T S"]) -> Links:
    """Link each target position to the source position with the largest weight."""
    return [(source, target) for target, source in enumerate(weights.argmax(-1).tolist())]
