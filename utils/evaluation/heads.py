"""Importance of attention heads: how much worse a translator gets without each (Michel et al. 2019).

ΔL(h) = L(ξ_h = 0) - L, in nats per target token of a text; below 0, the translator is better without the head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from const.token import PAD_ID
from layers.probe import silenced_head
from models.transformer import Transformer
from utils.command import aligned
from utils.dataset.batch import Batch, padded
from utils.dataset.text import ParallelText
from utils.search.forced import KINDS, Kind, attentions, recorded_by_kind, row_entropy
from utils.search.translator import within_budget
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


class Importance(NamedTuple):
    """The importance of all heads, from the bottom of the encoder upwards, and the loss with all of them."""

    loss: float  # nats per target token
    heads: list[Head]


def text_batches(pairs: ParallelText, tokenizers: TokenizerPair, device: torch.device) -> list[Batch]:
    """Return a text in batches of similar length."""
    src, tgt = tokenizers.src.encode(pairs.src), tokenizers.tgt.encode(pairs.tgt)
    lengths = [max(map(len, pair)) + 1 for pair in zip(src, tgt, strict=True)]
    return [
        Batch(padded([src[i] for i in rows]), padded([tgt[i] for i in rows], bos=True)).to(device)
        for rows in within_budget(lengths, _TOKENS_PER_BATCH)
    ]


@torch.inference_mode()
def head_importance(model: Transformer, batches: Sequence[Batch]) -> Importance:
    """Switch off the heads of a model in eval mode one at a time."""
    loss, entropies = _loss(model, batches), _entropies(model, batches)
    every = [
        (kind, layer, head, attention)
        for kind, layers in attentions(model).items()
        for layer, attention in enumerate(layers)
        for head in range(attention.n_heads)
    ]
    heads = []
    bar = tqdm(every, unit="head", disable=None, leave=False)
    for (kind, layer, head, attention), entropy in zip(bar, entropies, strict=True):
        with silenced_head(attention, head):
            heads.append(Head(kind, layer + 1, head + 1, _loss(model, batches) - loss, entropy))
    return Importance(loss, heads)


def _loss(model: Transformer, batches: Sequence[Batch]) -> float:
    """Return the loss in nats per target token."""
    found = [token_loss(model.hidden(b.src, b.tgt[:, :-1])[None], model.output, b.tgt[:, 1:]) for b in batches]
    return sum(one.nats.item() for one in found) / sum(int(one.tokens) for one in found)


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
    """Return the loss with all heads, and a line for each head with the change without it."""
    rows = [
        [KINDS[one.kind], str(one.layer), str(one.head), f"{one.loss_rise:+.4f}", f"{one.entropy:.3f}"]
        for one in found.heads
    ]
    whole = f"with all heads: loss {found.loss:.4f} nats per target token"
    change = "change without each head, and the mean entropy of its weights in nats"
    return [whole, "", change, *aligned([["attention", "layer", "head", "loss", "entropy"], *rows], "lrrrr")]


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
