"""Word alignment by cross-attention against gold alignments: error rate, precision and recall of Och & Ney 2003.

With links A, of which each target word has one, sure gold links S and possible ones P, which contain S:
AER = 1 - (|A∩S| + |A∩P|) / (|A| + |S|), precision = |A∩P| / |A|, recall = |A∩S| / |S|.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple
from unicodedata import normalize

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from utils.load import Run
from utils.search.forced import attention_weights, attentions
from utils.text.tokenizer import Tokenizer
from utils.text.words import Words
from utils.visualize.curve import sheet

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
    sides = zip(run.tokenizers, texts, (data.src_lang, data.tgt_lang), strict=True)
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
        image = axes.imshow(grid, cmap="Reds", vmin=0, vmax=100)
        for (row, column), aer in np.ndenumerate(grid):
            axes.text(column, row, f"{aer:.1f}", ha="center", va="center", fontsize=8, color="w" if aer > 60 else "k")
        axes.set_xticks(range(len(heads)), heads)
        axes.set_yticks(range(len(layers)), layers)
        axes.set(title=title, xlabel="head", ylabel="layer")
        axes.figure.colorbar(image, ax=axes, label="AER (%)")
