"""Importance of attention heads: how much worse a translator gets without each (Michel et al. 2019).

ΔL(h) = L(ξ_h = 0) - L, in nats per target token of a text; below 0, the translator is better without the head.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sacrebleu.metrics.base import Metric
from torch import Tensor
from tqdm import tqdm

from const.token import PAD_ID
from layers.mask import padding_mask
from layers.multi_head_attention import MultiHeadAttention
from layers.probe import silenced_head
from models.transformer import Transformer
from utils.command import aligned
from utils.dataset.batch import Batch, padded, within_budget
from utils.dataset.text import ParallelText
from utils.search.inspection import KINDS, Kind, attentions, recorded_by_kind, row_entropy
from utils.search.translator import Translator
from utils.text.tokenizer import TokenizerPair
from utils.training.loss import token_loss
from utils.visualize.curve import drawing

_TOKENS_PER_BATCH = 4096
_CELL = 0.55  # inches


@dataclass(frozen=True)
class Head:
    """The importance of one head; layers and heads are counted from 1, layers from the bottom."""

    kind: Kind
    layer: int
    head: int
    loss_rise: float  # without the head, in nats per target token
    entropy: float  # of its weights, the mean over all query positions, in nats
    bleu_change: float | None = None  # BLEU without the head minus BLEU with it; None: not requested


class Importance(NamedTuple):
    """The importance of all heads, from the bottom of the encoder upwards, and the scores with all heads."""

    loss: float  # nats per target token
    heads: list[Head]
    bleu: float | None = None  # None: not requested


def text_batches(pairs: ParallelText, tokenizers: TokenizerPair, device: torch.device) -> list[Batch]:
    """Return a text in batches of similar length."""
    src, tgt = tokenizers.src.encode(pairs.src), tokenizers.tgt.encode(pairs.tgt)
    lengths = [max(len(source), len(target)) + 1 for source, target in zip(src, tgt, strict=True)]
    return [
        Batch(padded([src[i] for i in rows]), padded([tgt[i] for i in rows], bos=True)).to(device)
        for rows in within_budget(lengths, _TOKENS_PER_BATCH)
    ]


@torch.inference_mode()
def head_importance(model: Transformer, batches: Sequence[Batch]) -> Importance:
    """Switch off the heads of a model in eval mode one at a time."""
    memories = [model.encode(batch.src) for batch in batches]
    loss, entropies = _loss(model, batches, memories), _entropies(model, batches)
    heads = []
    for (kind, layer, head, attention), entropy in zip(_heads(model), entropies, strict=True):
        with silenced_head(attention, head):
            # a head of the decoder does not change what the encoder returns
            read = [model.encode(batch.src) for batch in batches] if kind == "encoder" else memories
            rise = _loss(model, batches, read) - loss
        heads.append(Head(kind, layer + 1, head + 1, rise, entropy))
    return Importance(loss, heads)


def with_bleu(found: Importance, translator: Translator, pairs: ParallelText, bleu: Metric) -> Importance:
    """Add BLEU of a text with all heads, and its change without each."""
    model = translator.model  # a packed copy of the run's own
    if not isinstance(model, Transformer):
        raise ValueError("only the heads of a single run can be switched off, not those of an ensemble: give one run")

    def score() -> float:
        return bleu.corpus_score([found.text for found in translator.translate(pairs.src)], [pairs.tgt]).score

    whole, heads = score(), []
    for known, (_, _, head, attention) in zip(found.heads, _heads(model), strict=True):
        with silenced_head(attention, head):
            heads.append(replace(known, bleu_change=score() - whole))
    return Importance(found.loss, heads, whole)


def _heads(model: Transformer) -> Iterable[tuple[Kind, int, int, MultiHeadAttention]]:
    """Return kind, layer, head and attention of each head, with a progress bar."""
    every = [
        (kind, layer, head, attention)
        for kind, layers in attentions(model).items()
        for layer, attention in enumerate(layers)
        for head in range(attention.n_heads)
    ]
    return tqdm(every, unit="head", disable=None, leave=False)


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


def importance_table(found: Importance) -> list[str]:
    """Return the scores with all heads, and a line for each head with the change without it."""
    with_bleu = found.bleu is not None
    rows = [["attention", "layer", "head", "loss", *["BLEU"] * with_bleu, "entropy"]]
    for one in found.heads:
        changes = [f"{one.loss_rise:+.4f}", *([] if one.bleu_change is None else [f"{one.bleu_change:+.2f}"])]
        rows.append([KINDS[one.kind], str(one.layer), str(one.head), *changes, f"{one.entropy:.3f}"])
    whole = f"with all heads: loss {found.loss:.4f} nats per target token"
    whole += f", BLEU {found.bleu:.2f}" if with_bleu else ""
    change = "change without each head, and the mean entropy of its weights in nats"
    return [whole, "", change, *aligned(rows, "lrrrr" + "r" * with_bleu)]


def draw_head_importance(found: Importance, title: str, picture: Path) -> None:
    """Draw the heads by kind and layer as a PNG: above, the rise of the loss without each; below, its entropy."""
    kinds = list(dict.fromkeys(head.kind for head in found.heads))
    of = {kind: [head for head in found.heads if head.kind == kind] for kind in kinds}
    widths = [max(head.head for head in heads) for heads in of.values()]
    depth = max(head.layer for head in found.heads)
    size = (2.2 + _CELL * sum(widths) + 0.6 * len(kinds), 2.4 + 2 * _CELL * depth)
    rows = (
        ("loss_rise", "RdBu_r", -1, "{:+.3f}", "rise of the loss without it\n(nats per target token)"),
        ("entropy", "Greens", 0, "{:.2f}", "entropy (nats)"),
    )
    with drawing(picture, size, dpi=120) as figure:
        axes = figure.subplots(2, len(kinds), squeeze=False, width_ratios=widths)
        for row, (field, colours, least, number, label) in zip(axes, rows, strict=True):
            most = max(abs(getattr(head, field)) for head in found.heads) or 1.0
            for ax, heads in zip(row, of.values(), strict=True):
                shape = max(head.layer for head in heads), max(head.head for head in heads)
                grid = np.full(shape, np.nan)  # NaN where a layer has fewer heads than another
                for head in heads:
                    value = grid[head.layer - 1, head.head - 1] = getattr(head, field)
                    place, color = (head.head - 1, head.layer - 1), "w" if abs(value) > 0.6 * most else "k"
                    ax.text(*place, number.format(value), ha="center", va="center", fontsize=7, color=color)
                image = ax.imshow(grid, cmap=colours, vmin=least * most, vmax=most)
                for axis, length, name in ((ax.xaxis, shape[1], "head"), (ax.yaxis, shape[0], "layer")):
                    axis.set_ticks(range(length), [str(i + 1) for i in range(length)], fontsize=8)
                    axis.set_label_text(name, fontsize=8)
                ax.tick_params(length=0)
            figure.colorbar(image, ax=row, label=label, pad=0.01)
        for ax, kind in zip(axes[0], kinds, strict=True):
            ax.set_title(KINDS[kind], fontsize=10)
        figure.suptitle(title, fontsize=11)
