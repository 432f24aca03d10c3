"""The attention masks of `layers.mask`, with the tokens of rows and columns."""

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Bool
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from torch import Tensor

from const.token import PAD, PAD_ID, UNK_ID
from layers.mask import causal_mask, padding_mask
from utils.visualize.sheet import sheet

_COLORS = ListedColormap(["#e8e8e8", "#4a90c2"])  # False, True


def draw_masks(sources: Sequence[Sequence[str]], targets: Sequence[Sequence[str]], picture: Path) -> None:
    """Draw the padding mask of a batch, and the masks of its last pair in the three attentions of a translator.

    Args:
        sources: tokens with a final </s>, all padded to one length with <pad>.
        targets: tokens with an initial <s>, padded likewise.
        picture: file to write.
    """
    padding = padding_mask(torch.tensor([[PAD_ID if t == PAD else UNK_ID for t in row] for row in sources]), PAD_ID)
    src, tgt = sources[-1], targets[-1]
    last = padding[-1, 0]
    with sheet(picture, (10, 7.6), rows=2, columns=2) as (batch, encoder, decoder, cross):
        _cells(batch, padding[:, 0, 0], [f"sentence {i + 1}" for i in range(len(sources))], range(len(src)))
        for row, tokens in enumerate(sources):
            for column, token in enumerate(tokens):
                color = "white" if padding[row, 0, 0, column] else "#888888"
                batch.text(column, row, token, ha="center", va="center", fontsize=9, color=color)
        batch.set(title="padding_mask of a batch", xlabel="position of the source")
        _cells(encoder, last.expand(len(src), -1), src, src)
        encoder.set(title=f"sentence {len(sources)} in the encoder: padding_mask")
        _cells(decoder, causal_mask(len(tgt), len(tgt)), tgt, tgt)
        decoder.set(title="in the decoder: causal_mask", ylabel="query")
        _cells(cross, last.expand(len(tgt), -1), tgt, src)
        cross.set(title="from decoder to encoder: padding_mask")
        for axes in (encoder, decoder, cross):
            axes.set(xlabel="key", ylabel="query")


def memory_mask(memory: Sequence[int], segment: Sequence[int]) -> Bool[Tensor, "T S"]:
    """Return which positions a segment may attend to in Transformer-XL.

    Args:
        memory: document number of each remembered position.
        segment: document number of each position of the segment.
    """
    documents = torch.tensor([*memory, *segment])
    same = documents[len(memory) :, None] == documents
    return causal_mask(len(segment), len(documents)) & same


def draw_memory_mask(memory: Sequence[str], segment: Sequence[str], n_old: int, picture: Path) -> None:
    """Draw the mask of a segment in two cases: it continues the memory's document, or a new document begins within it.

    Args:
        memory: remembered tokens.
        segment: tokens of the segment.
        n_old: number of them that belong to the memory's document in the second case.
        picture: file to write.
    """
    inches = (1.5 + 0.42 * (len(memory) + len(segment)), 6.2)
    with sheet(picture, inches, rows=2) as (one, two):
        for axes, n_same, title in (
            (one, len(segment), "one document"),
            (two, n_old, f"a new document begins with “{segment[n_old]}”"),
        ):
            documents = [0] * n_same + [1] * (len(segment) - n_same)
            _cells(axes, memory_mask([0] * len(memory), documents), segment, [*memory, *segment])
            axes.axvline(len(memory) - 0.5, color="black", lw=1.5)
            axes.set(title=title, xlabel="key: memory | segment", ylabel="query")


def _cells(axes: Axes, mask: Bool[Tensor, "R C"], rows: Sequence[object], columns: Sequence[object]) -> None:
    """Draw a cell for each pair of query and key: dark where attention is allowed."""
    axes.imshow(mask.numpy(), cmap=_COLORS, vmin=0, vmax=1)
    labels = [str(name) for name in columns]
    axes.set_xticks(range(len(labels)), labels, rotation=90 if max(map(len, labels)) > 2 else 0)
    axes.set_yticks(range(len(rows)), [str(name) for name in rows])
    axes.set_xticks([i - 0.5 for i in range(1, len(labels))], minor=True)
    axes.set_yticks([i - 0.5 for i in range(1, len(rows))], minor=True)
    axes.grid(which="minor", color="white", lw=1.5)
    axes.tick_params(which="both", length=0)
