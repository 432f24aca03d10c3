"""Importance of attention heads: how much worse a translator gets without each (Michel et al. 2019).

ΔL(h) = L(ξ_h = 0) - L, in nats per target token of a text; below 0, the translator is better without the head.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from sacrebleu.metrics.base import Metric
from torch import Tensor

from const.token import PAD_ID
from layers.mask import padding_mask
from layers.multi_head_attention import MultiHeadAttention
from layers.silenced_head import silenced_head
from models.transformer import Transformer
from utils.dataset.batch import Batch, padded, within_budget
from utils.dataset.parallel_text import ParallelText
from utils.search.attention_map import Kind, attentions, recorded_by_kind, row_entropy
from utils.search.translator import Translator
from utils.text.pair import TokenizerPair
from utils.training.objective import token_loss

_TOKENS_PER_BATCH = 4096


@dataclass(frozen=True)
class Head:
    """The importance of one head.

    Args:
        kind: kind of attention.
        layer: layer, counted from 1 at the bottom.
        head: head, counted from 1.
        loss_rise: rise of the loss without the head, in nats per target token.
        entropy: mean entropy of its weights over all query positions, in nats.
        bleu_change: BLEU without the head minus BLEU with it; None: not requested.
    """

    kind: Kind
    layer: int
    head: int
    loss_rise: float
    entropy: float
    bleu_change: float | None = None


class Importance(NamedTuple):
    """The importance of all heads, from the bottom of the encoder upwards, and the scores with all heads."""

    loss: float  # nats per target token
    heads: list[Head]
    bleu: float | None = None  # None: not requested

    def with_bleu(self, bleu: float, without: Sequence[float]) -> "Importance":
        """Return a copy with the results of `bleu_without`."""
        heads = [replace(head, bleu_change=score - bleu) for head, score in zip(self.heads, without, strict=True)]
        return Importance(self.loss, heads, bleu)


def text_batches(pairs: ParallelText, tokenizers: TokenizerPair, device: torch.device) -> list[Batch]:
    """Return a text in batches of similar length."""
    src, tgt = tokenizers.src.encode(pairs.src), tokenizers.tgt.encode(pairs.tgt)
    lengths = [max(len(source), len(target)) + 1 for source, target in zip(src, tgt, strict=True)]
    return [
        Batch(padded([src[i] for i in rows]), padded([tgt[i] for i in rows], bos=True)).to(device)
        for rows in within_budget(lengths, _TOKENS_PER_BATCH)
    ]


def count_heads(model: Transformer) -> int:
    """Count the heads of all layers and kinds."""
    return sum(attention.n_heads for layers in attentions(model).values() for attention in layers)


@torch.inference_mode()
def head_importance(
    model: Transformer, batches: Sequence[Batch], on_progress: Callable[[int], object] = lambda _: None
) -> Importance:
    """Switch off the heads one at a time.

    Args:
        model: model in eval mode.
        batches: batches of the text.
        on_progress: called with the number of newly finished heads.
    """
    memories = [model.encode(batch.src) for batch in batches]
    loss, entropies = _loss(model, batches, memories), _entropies(model, batches)
    heads = []
    for (kind, layer, head, attention), entropy in zip(_heads(model), entropies, strict=True):
        with silenced_head(attention, head):
            # a head of the decoder does not change what the encoder returns
            read = [model.encode(batch.src) for batch in batches] if kind == "encoder" else memories
            rise = _loss(model, batches, read) - loss
        heads.append(Head(kind, layer + 1, head + 1, rise, entropy))
        on_progress(1)
    return Importance(loss, heads)


def bleu_without(
    translator: Translator,
    pairs: ParallelText,
    bleu: Metric,
    on_progress: Callable[[int], object] = lambda _: None,
) -> tuple[float, list[float]]:
    """Return BLEU of a text with all heads, and without each head, in the order of `head_importance`.

    Args:
        translator: translator of a single run.
        pairs: the text.
        bleu: sacreBLEU's metric, with the tokenizer of the language.
        on_progress: called with the number of newly finished heads.

    Raises:
        ValueError: the translator is an ensemble.
    """

    def score() -> float:
        translations = [found.text for found in translator.translate(pairs.src)]
        return bleu.corpus_score(translations, [pairs.tgt]).score

    whole, without = score(), []
    for _, _, head, attention in _heads(_searched(translator)):
        with silenced_head(attention, head):
            without.append(score())
        on_progress(1)
    return whole, without


def _heads(model: Transformer) -> Iterator[tuple[Kind, int, int, MultiHeadAttention]]:
    """Yield kind, layer, head and attention of each head."""
    for kind, layers in attentions(model).items():
        for layer, attention in enumerate(layers):
            for head in range(attention.n_heads):
                yield kind, layer, head, attention


def _searched(translator: Translator) -> Transformer:
    """Return the network that is searched: a packed copy of the run's own."""
    model = translator.model
    if not isinstance(model, Transformer):
        raise ValueError("only the heads of a single run can be switched off, not those of an ensemble: give one run")
    return model


def _loss(model: Transformer, batches: Sequence[Batch], memories: Sequence[Tensor]) -> float:
    """Return the loss in nats per target token, given the output of the encoder."""
    nats, tokens = 0.0, 0
    for batch, memory in zip(batches, memories, strict=True):
        hidden = model.decode(batch.tgt[:, :-1], memory, padding_mask(batch.src, PAD_ID))
        loss = token_loss(hidden, model.output, batch.tgt[:, 1:])
        nats, tokens = nats + loss.nats.item(), tokens + int(loss.tokens)
    return nats / tokens


def _entropies(model: Transformer, batches: Sequence[Batch]) -> list[float]:
    """Return the mean entropy of each head over the query positions of the text, without padding."""
    sums = {kind: [torch.zeros(layer.n_heads) for layer in layers] for kind, layers in attentions(model).items()}
    counts = dict.fromkeys(sums, 0)
    for batch in batches:
        with recorded_by_kind(model) as weights:
            model.hidden(batch.src, batch.tgt[:, :-1])
        for kind, layers in weights.items():
            real = (batch.src if kind == "encoder" else batch.tgt[:, 1:]) != PAD_ID
            counts[kind] += int(real.sum())
            for total, layer in zip(sums[kind], layers, strict=True):
                total += (row_entropy(layer.float()) * real[:, None]).sum((0, 2)).cpu()
    return [nats for kind, layers in sums.items() for layer in layers for nats in (layer / counts[kind]).tolist()]
