"""What a translator knows: which attention heads it needs, how well they align words, which translation is likelier."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
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
from utils.dataset.batch import Batch, padded
from utils.dataset.embedded import MinimalPair
from utils.dataset.text import ParallelText
from utils.load import Run
from utils.run import KEPT_WEIGHTS, titles
from utils.search.forced import (
    KINDS,
    Kind,
    attention_weights,
    attentions,
    recorded_by_kind,
    row_entropy,
    token_log_probs,
)
from utils.search.translator import within_budget
from utils.text.tokenizer import Tokenizer, TokenizerPair
from utils.text.words import Words
from utils.training.checkpoint import WEIGHTS_SUFFIX, read_weights, step_files, step_of
from utils.training.loss import token_loss
from utils.visualize.curve import drawing, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

# Importance of heads: how much worse a translator gets without each (Michel et al. 2019).
# ΔL(h) = L(ξ_h = 0) - L, in nats per target token of a text; below 0, the translator is better without the head.

_TOKENS_PER_BATCH = 4096
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
                # NaN where a layer has fewer heads than another
                grid = np.full((max(head.layer for head in heads), max(head.head for head in heads)), np.nan)
                for head in heads:
                    grid[head.layer - 1, head.head - 1] = getattr(head, field)
                image = _number_map(ax, grid, number, colours, least * most, most)
            figure.colorbar(image, ax=row, label=label, pad=0.01)
        for ax, kind in zip(axes[0], kinds, strict=True):
            ax.set_title(KINDS[kind], fontsize=10)
        figure.suptitle(title, fontsize=11)


def _number_map(
    ax: "Axes", grid: NDArray[np.float64], number: str, colours: str, least: float, most: float
) -> "AxesImage":
    """Draw a number and a colour for each head, layers down, heads across; nothing where there is NaN."""
    image = ax.imshow(grid, cmap=colours, vmin=least, vmax=most)
    for (row, column), value in np.ndenumerate(grid):
        if not np.isnan(value):
            color = "w" if abs(value) > 0.6 * most else "k"
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


class Score(NamedTuple):
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
        if (found := re.fullmatch(r"(?:([SP])-)?(\d+)-(\d+)", re.sub(r"^(\d+)p", r"P-\1-", link))) is None:
            raise ValueError(f"{place}: {link!r} is no link: write i-j or S-i-j (sure), P-i-j or ipj (possible)")
        i, j = int(found[2]), int(found[3])
        if i >= n_source or j >= n_target:
            raise ValueError(f"{place}: {link!r} is beyond {n_source} source and {n_target} target words; count from 0")
        gold[int(found[1] == "P") :, j, i] = True
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


def score_heads(run: Run, texts: Sequence[list[str]], golds: list[Gold], layer: int | None) -> tuple[list[Score], int]:
    """Score the heads of each decoder layer, or of one, and behind them their mean; count the sentences left out.

    Source and target text have words separated by spaces; a run that learned from plain text reads them joined to such.
    """
    data, n_layers = run.config.data, len(attentions(run.model)["cross"])
    if layer is not None and not 1 <= layer <= n_layers:
        raise ValueError(f"--layer {layer}: the decoder has {n_layers}; give 1 to {n_layers}")
    sides = zip(run.tokenizers, texts, data.languages, strict=True)
    read = zip(*(_read(run, *side) for side in sides), golds, strict=True)
    kept = [(*src, *tgt, gold) for src, tgt, gold in read if src and tgt]

    def by_word() -> Iterator[tuple[Float[Tensor, "N H T S"], Gold]]:
        for src, of_source, tgt, of_target, gold in kept:  # the last row and column of the weights are those of </s>
            x = torch.stack(attention_weights(run.model, src, tgt)["cross"][slice(layer and layer - 1, layer)])
            yield of_target.T @ torch.cat([x, x.mean(1, keepdim=True)], 1)[..., :-1, :-1] @ of_source, gold

    found = agreement(by_word()).permute(1, 2, 0).tolist()
    heads = [*range(1, len(found[0])), "mean"]
    named = [(i, head, *of) for i, row in enumerate(found, layer or 1) for head, of in zip(heads, row, strict=True)]
    return [Score(*one) for one in named], len(golds) - len(kept)


def _read(run: Run, tokenizer: Tokenizer, lines: list[str], language: str) -> Iterator[tuple[list[int], Tensor] | None]:
    """Yield the ids of each text, and which share (P, W) of each piece's characters belongs to each word; 0 of a tag's.

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


def draw_error_rates(scores: Sequence[Score], title: str, picture: Path) -> None:
    """Draw the error rates as a PNG: a row for each layer, a column for each head and one for the mean."""
    layers, heads = ([*map(str, dict.fromkeys(names))] for names in (*zip(*scores, strict=True),)[:2])
    grid = 100 * np.array([one.aer for one in scores]).reshape(len(layers), -1)
    with sheet(picture, (1.9 + 0.6 * len(heads), 1.3 + 0.6 * len(layers)), dpi=120) as (axes,):
        image = _number_map(axes, grid, "{:.1f}", "Reds", 0, 100)
        axes.set_xticks(range(len(heads)), heads)
        axes.set_yticks(range(len(layers)), layers)
        axes.set_title(title, fontsize=11)
        axes.figure.colorbar(image, ax=axes, label="AER (%)")


# Minimal pairs: how often a translator finds the right one of two translations likelier (Sennrich 2017). Nothing is
# searched for: the log-probabilities of both, given the source, are compared.

CHANCE = 50.0
Accuracy = dict[str, float]  # phenomenon -> percentage of its pairs


class Course(NamedTuple):
    """The accuracies of a run with its best weights, and with those kept of each validation, by updates."""

    run: str
    accuracy: Accuracy
    by_updates: dict[int, Accuracy]


def pair_accuracy(run: Run, pairs: Mapping[str, Sequence[MinimalPair]]) -> Accuracy:
    """Return how many pairs have a right translation that the present weights find likelier than the wrong one."""
    every = [pair for of_one in pairs.values() for pair in of_one]
    sources = run.tokenizers.src.encode([pair.source for pair in every])
    right, wrong = (
        map(sum, token_log_probs(run.model, sources, run.tokenizers.tgt.encode(texts)))
        for texts in ([pair.right for pair in every], [pair.wrong for pair in every])
    )
    is_right = (one > other for one, other in zip(right, wrong, strict=True))
    return {name: 100 * sum(islice(is_right, len(of_one))) / len(of_one) for name, of_one in pairs.items()}


def pair_course(run: Run, pairs: Mapping[str, Sequence[MinimalPair]]) -> Course:
    """Score the best weights, then those kept of each validation; the network is left with the last of them."""
    best, by_updates = pair_accuracy(run, pairs), dict[int, Accuracy]()
    kept = step_files(run.folder / KEPT_WEIGHTS, WEIGHTS_SUFFIX)
    for path in tqdm(kept, unit="validation", disable=None, leave=False):
        run.model.load_state_dict(read_weights(path))
        by_updates[step_of(path)] = pair_accuracy(run, pairs)
    return Course(run.folder.resolve().name, best, by_updates)


def pair_table(courses: Sequence[Course], pairs: Mapping[str, Sequence[MinimalPair]]) -> list[str]:
    """Return a line for each phenomenon, with a column for each run."""
    rows = [
        [name, f"{len(of_one):,}", *(f"{course.accuracy[name]:.1f}" for course in courses), f"{CHANCE:.1f}"]
        for name, of_one in pairs.items()
    ]
    head = ["phenomenon", "pairs", *titles([course.run for course in courses]), "chance"]
    return aligned([head, *rows], "l" + "r" * (len(head) - 1))


def draw_pair_courses(courses: Sequence[Course], picture: Path) -> None:
    """Draw the accuracies against the updates as a PNG, with a panel for each run and a line for each phenomenon."""
    with sheet(picture, (1.5 + 4 * len(courses), 4), columns=len(courses), dpi=110) as panels:
        for axes, title, course in zip(panels, titles([course.run for course in courses]), courses, strict=True):
            for name in course.accuracy:
                heights = [accuracy[name] for accuracy in course.by_updates.values()]
                axes.plot([*course.by_updates], heights, "o-", ms=2, lw=1.2, label=name)
            axes.axhline(CHANCE, color="black", lw=0.8, ls=":")
            axes.set(title=title, xlabel="updates", ylim=(0, 103))
            axes.grid(alpha=0.3)
        panels[0].set(ylabel="pairs with the right one likelier (%)")
        panels[-1].legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
