"""Which attention heads a translator needs, and which of them align words."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple
from unicodedata import normalize

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from const.token import PAD_ID
from layers.probe import silenced_head
from models.transformer import Transformer
from utils.command import aligned
from utils.dataset.text import ParallelText
from utils.load import Run
from utils.search.forced import (
    KINDS,
    Kind,
    attention_weights,
    attentions,
    pair_batches,
    recorded_by_kind,
    row_entropy,
    token_log_probs,
)
from utils.search.searcher import Ids
from utils.text.tokenizer import Tokenizer
from utils.text.words import Words
from utils.visualize.curve import drawing, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

# Importance of heads: how much worse a translator gets without each (Michel et al. 2019).
# ΔL(h) = L(ξ_h = 0) - L, in nats per target token of a text; below 0, the translator is better without the head.

_CELL = 0.55  # inches


class Head(NamedTuple):
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


@torch.inference_mode()
def head_importance(run: Run, text: ParallelText) -> Importance:
    """Switch off the heads of a run, whose network is in eval mode, one at a time."""
    model, pairs = run.transformer, (run.tokenizers.src.encode(text.src), run.tokenizers.tgt.encode(text.tgt))
    loss, entropies = _loss(model, *pairs), _entropies(model, *pairs)
    places = [
        (kind, layer, head, attention)
        for kind, layers in attentions(model).items()
        for layer, attention in enumerate(layers)
        for head in range(attention.n_heads)
    ]
    heads = []
    bar = tqdm(places, unit="head", disable=None, leave=False)
    for (kind, layer, head, attention), entropy in zip(bar, entropies, strict=True):
        with silenced_head(attention, head):
            heads.append(Head(kind, layer + 1, head + 1, _loss(model, *pairs) - loss, entropy))
    return Importance(loss, heads)


def _loss(model: Transformer, sources: Ids, targets: Ids) -> float:
    """Return the loss in nats per target token."""
    log_probs = token_log_probs(model, sources, targets)
    return -sum(map(sum, log_probs)) / sum(map(len, log_probs))


def _entropies(model: Transformer, sources: Ids, targets: Ids) -> list[float]:
    """Return the mean entropy of each head over the query positions of the text, without padding."""
    sums = {kind: [torch.zeros(layer.n_heads) for layer in layers] for kind, layers in attentions(model).items()}
    counts = dict.fromkeys(sums, 0)
    for _, src, tgt in pair_batches(sources, targets, next(model.parameters()).device):
        with recorded_by_kind(model) as weights:
            model.hidden(src, tgt[:, :-1])
        for kind, layers in weights.items():
            real = (src if kind == "encoder" else tgt[:, 1:]) != PAD_ID
            counts[kind] += int(real.sum())
            for total, layer in zip(sums[kind], layers, strict=True):
                total += (row_entropy(layer.float()) * real[:, None]).sum((0, 2)).cpu()
    return [nats for kind, layers in sums.items() for layer in layers for nats in (layer / counts[kind]).tolist()]


def importance_table(importance: Importance) -> list[str]:
    """Return the loss with all heads, and a line for each head with the change without it."""
    rows = [
        [KINDS[kind], str(layer), str(head), f"{loss_rise:+.4f}", f"{entropy:.3f}"]
        for kind, layer, head, loss_rise, entropy in importance.heads
    ]
    whole = f"with all heads: loss {importance.loss:.4f} nats per target token"
    change = "change without each head, and the mean entropy of its weights in nats"
    return [whole, "", change, *aligned([["attention", "layer", "head", "loss", "entropy"], *rows], "lrrrr")]


def draw_head_importance(importance: Importance, title: str, picture: Path) -> None:
    """Draw the heads by kind and layer as a PNG: above, the rise of the loss without each; below, its entropy."""
    by_kind: dict[Kind, list[Head]] = {}
    for head in importance.heads:
        by_kind.setdefault(head.kind, []).append(head)
    widths = [max(head.head for head in heads) for heads in by_kind.values()]
    depth = max(head.layer for head in importance.heads)
    size = (2.2 + _CELL * sum(widths) + 0.6 * len(by_kind), 2.4 + 2 * _CELL * depth)
    rows = (
        ("loss_rise", "RdBu_r", -1, "{:+.3f}", "rise of the loss without it\n(nats per target token)"),
        ("entropy", "Greens", 0, "{:.2f}", "entropy (nats)"),
    )
    with drawing(picture, size, dpi=120) as figure:
        axes = figure.subplots(2, len(by_kind), squeeze=False, width_ratios=widths)
        for row, (field, colours, sign_of_lowest, number, label) in zip(axes, rows, strict=True):
            largest = max(abs(getattr(head, field)) for head in importance.heads) or 1.0
            for ax, heads in zip(row, by_kind.values(), strict=True):
                # NaN where a layer has fewer heads than another
                grid = np.full((max(head.layer for head in heads), max(head.head for head in heads)), np.nan)
                for head in heads:
                    grid[head.layer - 1, head.head - 1] = getattr(head, field)
                image = _number_map(ax, grid, number, colours, sign_of_lowest * largest, largest)
            figure.colorbar(image, ax=row, label=label, pad=0.01)
        for ax, kind in zip(axes[0], by_kind, strict=True):
            ax.set_title(KINDS[kind], fontsize=10)
        figure.suptitle(title, fontsize=11)


def _number_map(
    ax: "Axes", grid: NDArray[np.float64], number: str, colours: str, low: float, high: float
) -> "AxesImage":
    """Draw a number and a colour for each head, layers down, heads across; nothing where there is NaN."""
    image = ax.imshow(grid, cmap=colours, vmin=low, vmax=high)
    for (row, column), value in np.ndenumerate(grid):
        if not np.isnan(value):
            color = "w" if abs(value) > 0.6 * high else "k"
            ax.text(column, row, number.format(value), ha="center", va="center", fontsize=7, color=color)
    for axis, length, name in ((ax.xaxis, grid.shape[1], "head"), (ax.yaxis, grid.shape[0], "layer")):
        axis.set_ticks(range(length), [str(i + 1) for i in range(length)], fontsize=8)
        axis.set_label_text(name, fontsize=8)
    ax.tick_params(length=0)
    return image


# Word alignment by cross-attention against gold alignments: error rate, precision and recall of Och & Ney 2003.
# With links A, of which each target word has one, sure gold links S and possible ones P, which contain S:
# AER = 1 - (|A∩S| + |A∩P|) / (|A| + |S|), precision = |A∩P| / |A|, recall = |A∩S| / |S|.

Gold = Bool[Tensor, "2 T S"]  # whether target and source word are linked: surely; at least possibly


class AlignmentScore(NamedTuple):
    """How well one head, or the mean over the heads of its layer, aligns; counted from 1, layers from the bottom."""

    layer: int
    head: int | Literal["mean"]
    aer: float
    precision: float
    recall: float


def parse_gold(place: str, line: str, n_source: int, n_target: int) -> Gold:
    """Read a sentence's links: `i-j`, `S-i-j` sure; `P-i-j`, `ipj` possible; from 0, source word i first."""
    gold = torch.zeros(2, n_target, n_source, dtype=torch.bool)
    for link in line.split():
        if (match := re.fullmatch(r"(?:([SP])-)?(\d+)-(\d+)", re.sub(r"^(\d+)p", r"P-\1-", link))) is None:
            raise ValueError(f"{place}: {link!r} is no link: write i-j or S-i-j (sure), P-i-j or ipj (possible)")
        i, j = int(match[2]), int(match[3])
        if i >= n_source or j >= n_target:
            raise ValueError(f"{place}: {link!r} is beyond {n_source} source and {n_target} target words; count from 0")
        gold[int(match[1] == "P") :, j, i] = True
    return gold


def agreement(pairs: Iterable[tuple[Float[Tensor, "N H T S"], Gold]]) -> Float[Tensor, "3 N H"]:
    """Return AER, precision and recall where each target word is linked to the source word with the largest weight."""
    hits, n_links, n_sure = torch.zeros(2, 1, 1, dtype=torch.float64), 0, 0
    for weights, gold in pairs:
        hits = hits + gold[:, torch.arange(gold.size(1)), weights.argmax(-1)].sum(-1)
        n_links, n_sure = n_links + gold.size(1), n_sure + int(gold[0].sum())
    if not n_sure:
        raise ValueError("no sentence with a sure link is left to score: give the gold alignments of these texts")
    return torch.stack([1 - hits.sum(0) / (n_links + n_sure), hits[1] / n_links, hits[0] / n_sure])


def score_alignment(
    run: Run, texts: Sequence[list[str]], golds: list[Gold], layer: int | None
) -> tuple[list[AlignmentScore], int]:
    """Score the heads of each decoder layer, or of one, and behind them their mean; count the sentences left out.

    Source and target text have words separated by spaces; a run that learned from plain text reads them joined to such.
    """
    data, n_layers = run.config.data, len(attentions(run.model)["cross"])
    if layer is not None and not 1 <= layer <= n_layers:
        raise ValueError(f"--layer {layer}: the decoder has {n_layers}; give 1 to {n_layers}")
    sides = zip(run.tokenizers, texts, data.languages, strict=True)
    sentences = zip(*(_pieces(run, *side) for side in sides), golds, strict=True)
    kept = [(*src, *tgt, gold) for src, tgt, gold in sentences if src and tgt]

    def by_word() -> Iterator[tuple[Float[Tensor, "N H T S"], Gold]]:
        for src, of_source, tgt, of_target, gold in kept:  # the last row and column of the weights are those of </s>
            x = torch.stack(attention_weights(run.model, src, tgt)["cross"][slice(layer and layer - 1, layer)])
            yield of_target.T @ torch.cat([x, x.mean(1, keepdim=True)], 1)[..., :-1, :-1] @ of_source, gold

    by_layer = agreement(by_word()).permute(1, 2, 0).tolist()
    heads = [*range(1, len(by_layer[0])), "mean"]
    scores = [
        AlignmentScore(number, head, *shares)
        for number, row in enumerate(by_layer, layer or 1)
        for head, shares in zip(heads, row, strict=True)
    ]
    return scores, len(golds) - len(kept)


def _pieces(
    run: Run, tokenizer: Tokenizer, lines: list[str], language: str
) -> Iterator[tuple[list[int], Float[Tensor, "P W"]] | None]:
    """Yield the ids of each text, and which share of each piece's characters belongs to each word; 0 of a tag's.

    None where the pieces do not spell the words, or are more than the network holds.
    """
    plain = Words(language, {}, lowercase=False, escaped=False, curled=True)
    texts = lines if run.config.data.is_tokenized else [*map(plain.join, lines)]
    n_tags = len(getattr(tokenizer, "tags", ()))
    for line, ids, split in zip(lines, tokenizer.encode(texts), tokenizer.split(texts), strict=True):
        both = [""] * n_tags + split[n_tags:], line.split()
        # folded, because unknown forms of characters are read as known ones
        pieces, words = ([normalize("NFKC", x.replace("▁", "")).casefold() for x in parts] for parts in both)
        if words and "".join(pieces) == "".join(words) and len(ids) == len(pieces) < run.config.model.max_length:
            shares = np.zeros((len(pieces), len(words)), np.float32)
            owners = ([i for i, part in enumerate(parts) for _ in part] for parts in (pieces, words))
            np.add.at(shares, tuple(owners), 1)
            yield ids, torch.from_numpy(shares / shares.sum(1, keepdims=True).clip(1))
        else:
            yield None


def draw_error_rates(scores: Sequence[AlignmentScore], title: str, picture: Path) -> None:
    """Draw the error rates as a PNG: a row for each layer, a column for each head and one for the mean."""
    layers, heads = ([*map(str, dict.fromkeys(names))] for names in (*zip(*scores, strict=True),)[:2])
    grid = 100 * np.array([score.aer for score in scores]).reshape(len(layers), -1)
    with sheet(picture, (1.9 + 0.6 * len(heads), 1.3 + 0.6 * len(layers)), dpi=120) as (axes,):
        image = _number_map(axes, grid, "{:.1f}", "Reds", 0, 100)
        axes.set_xticks(range(len(heads)), heads)
        axes.set_yticks(range(len(layers)), layers)
        axes.set_title(title, fontsize=11)
        axes.figure.colorbar(image, ax=axes, label="AER (%)")
