"""What each head of a translator is worth: how much worse it gets without, Michel et al. 2019.

ΔL(h) = L(ξ_h = 0) - L, in nats per target token of a text; below 0 the translator is better off without the head.
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
from utils.search.coverage import Covered
from utils.search.translator import Translator
from utils.text.pair import TokenizerPair
from utils.training.objective import token_loss

_TOKENS_PER_BATCH = 4096


@dataclass(frozen=True)
class Head:
    """What one head is worth.

    Args:
        kind: of its attention.
        layer: counted from 1, from the source upwards.
        head: counted from 1.
        loss_rise: how much higher the loss is without it, in nats per target token.
        entropy: of its weights, in nats, mean over all positions that look.
        bleu_change: BLEU without it less BLEU with it; None: not asked for.
    """

    kind: Kind
    layer: int
    head: int
    loss_rise: float
    entropy: float
    bleu_change: float | None = None


class Importance(NamedTuple):
    """Of all heads, from the source upwards, and what the translator has with all of them."""

    loss: float  # nats per target token
    heads: list[Head]
    bleu: float | None = None  # not asked for

    def with_bleu(self, bleu: float, without: Sequence[float]) -> "Importance":
        """The same, with what `bleu_without` has found."""
        heads = [replace(head, bleu_change=score - bleu) for head, score in zip(self.heads, without, strict=True)]
        return Importance(self.loss, heads, bleu)


def text_batches(pairs: ParallelText, tokenizers: TokenizerPair, device: torch.device) -> list[Batch]:
    """A text in batches of like length."""
    src, tgt = tokenizers.src.encode(pairs.src), tokenizers.tgt.encode(pairs.tgt)
    lengths = [max(len(source), len(target)) + 1 for source, target in zip(src, tgt, strict=True)]
    return [
        Batch(padded([src[i] for i in rows]), padded([tgt[i] for i in rows], bos=True)).to(device)
        for rows in within_budget(lengths, _TOKENS_PER_BATCH)
    ]


def count_heads(model: Transformer) -> int:
    """Of all layers and kinds."""
    return sum(attention.n_heads for layers in attentions(model).values() for attention in layers)


@torch.inference_mode()
def head_importance(
    model: Transformer, batches: Sequence[Batch], on_progress: Callable[[int], object] = lambda _: None
) -> Importance:
    """Switch off one head after the other.

    Args:
        model: in eval mode.
        batches: of the text.
        on_progress: is told how many more heads are done.
    """
    memories = [model.encode(batch.src) for batch in batches]
    loss, entropies = _loss(model, batches, memories), _entropies(model, batches)
    heads = []
    for (kind, layer, head, attention), entropy in zip(_heads(model), entropies, strict=True):
        with silenced_head(attention, head):
            # without a head of the decoder the source is read as before
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
    """BLEU of a text with all heads, and without each, in the order of `head_importance`.

    Args:
        translator: of one run.
        pairs: the text.
        bleu: sacreBLEU's, with the tokenizer of the language.
        on_progress: is told how many more heads are done.

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
    """Kind, layer, head and attention of each head."""
    for kind, layers in attentions(model).items():
        for layer, attention in enumerate(layers):
            for head in range(attention.n_heads):
                yield kind, layer, head, attention


def _searched(translator: Translator) -> Transformer:
    """The network that is searched: a packed copy of the run's own."""
    model = translator.model.model if isinstance(translator.model, Covered) else translator.model
    if not isinstance(model, Transformer):
        raise ValueError("the heads of one run can be switched off, not those of an ensemble: give one run")
    return model


def _loss(model: Transformer, batches: Sequence[Batch], memories: Sequence[Tensor]) -> float:
    """Nats per target token, given what the encoder has read."""
    nats, tokens = 0.0, 0
    for batch, memory in zip(batches, memories, strict=True):
        hidden = model.decode(batch.tgt[:, :-1], memory, padding_mask(batch.src, PAD_ID))
        loss = token_loss(hidden, model.output, batch.tgt[:, 1:])
        nats, tokens = nats + loss.nats.item(), tokens + int(loss.tokens)
    return nats / tokens


def _entropies(model: Transformer, batches: Sequence[Batch]) -> list[float]:
    """Of each head, mean over the positions of the text that look, padding left out."""
    sums = {kind: [torch.zeros(layer.n_heads) for layer in layers] for kind, layers in attentions(model).items()}
    counts = dict.fromkeys(sums, 0)
    for batch in batches:
        with recorded_by_kind(model) as weights:
            model.decode(batch.tgt[:, :-1], model.encode(batch.src), padding_mask(batch.src, PAD_ID))
        for kind, layers in weights.items():
            real = (batch.src if kind == "encoder" else batch.tgt[:, 1:]) != PAD_ID
            counts[kind] += int(real.sum())
            for total, layer in zip(sums[kind], layers, strict=True):
                total += (row_entropy(layer.float()) * real[:, None]).sum((0, 2)).cpu()
    return [nats for kind, layers in sums.items() for layer in layers for nats in (layer / counts[kind]).tolist()]
