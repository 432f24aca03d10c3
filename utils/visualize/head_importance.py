"""The importance of each attention head of a translator, as a table and as a picture."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from utils.evaluation.head_importance import Head, Importance
from utils.search.attention_map import KINDS, Kind
from utils.terminal.plain_text import aligned
from utils.visualize.sheet import drawing

_CELL = 0.55  # inches


def importance_table(found: Importance) -> list[str]:
    """Return the scores with all heads, and a line for each head with the change without it."""
    has_bleu = found.bleu is not None
    rows = [["attention", "layer", "head", "loss", *["BLEU"] * has_bleu, "entropy"]]
    rows += [
        [
            KINDS[one.kind],
            str(one.layer),
            str(one.head),
            f"{one.loss_rise:+.4f}",
            *([] if one.bleu_change is None else [f"{one.bleu_change:+.2f}"]),
            f"{one.entropy:.3f}",
        ]
        for one in found.heads
    ]
    whole = f"with all heads: loss {found.loss:.4f} nats per target token"
    whole += f", BLEU {found.bleu:.2f}" if has_bleu else ""
    change = "change without each head, and the mean entropy of its weights in nats"
    return [whole, "", change, *aligned(rows, "lrrrr" + "r" * has_bleu)]


def draw_head_importance(found: Importance, title: str, picture: Path) -> None:
    """Draw the heads by kind and layer as a PNG: above, the rise of the loss without each; below, its entropy.

    Args:
        found: importance of the heads.
        title: title with the run and the text.
        picture: file to write.
    """
    kinds = list(dict.fromkeys(head.kind for head in found.heads))
    grids = {kind: [_grid(found, kind, field) for field in ("loss_rise", "entropy")] for kind in kinds}
    widths, depth = [grid.shape[1] for grid, _ in grids.values()], max(len(grid) for grid, _ in grids.values())
    size = (2.2 + _CELL * sum(widths) + 0.6 * len(kinds), 2.4 + 2 * _CELL * depth)
    most_rise = max(abs(head.loss_rise) for head in found.heads) or 1.0
    most_entropy = max(head.entropy for head in found.heads) or 1.0
    with drawing(picture, size, dpi=120) as figure:
        axes = figure.subplots(2, len(kinds), squeeze=False, width_ratios=widths)
        for column, (kind, (rise, entropy)) in enumerate(grids.items()):
            above = _heat_map(axes[0, column], rise, ("RdBu_r", -most_rise, most_rise), "{:+.3f}")
            below = _heat_map(axes[1, column], entropy, ("Greens", 0.0, most_entropy), "{:.2f}")
            axes[0, column].set_title(KINDS[kind], fontsize=10)
        figure.colorbar(above, ax=axes[0], label="rise of the loss without it\n(nats per target token)", pad=0.01)
        figure.colorbar(below, ax=axes[1], label="entropy (nats)", pad=0.01)
        figure.suptitle(title, fontsize=11)


def _grid(found: Importance, kind: Kind, field: str) -> NDArray[np.float64]:
    """Return values with layers down and heads across; NaN where a layer has fewer heads than another."""
    heads: list[Head] = [head for head in found.heads if head.kind == kind]
    grid = np.full((max(head.layer for head in heads), max(head.head for head in heads)), np.nan)
    for head in heads:
        grid[head.layer - 1, head.head - 1] = getattr(head, field)
    return grid


def _heat_map(ax: Axes, values: NDArray[np.float64], colours: tuple[str, float, float], number: str) -> AxesImage:
    name, least, most = colours
    image = ax.imshow(values, cmap=name, vmin=least, vmax=most)
    for (layer, head), value in np.ndenumerate(values):
        if not np.isnan(value):
            is_dark = abs(value) > 0.6 * most
            ax.text(head, layer, number.format(value), ha="center", va="center", fontsize=7, color="wk"[not is_dark])
    ax.set_xticks(range(values.shape[1]), [str(i + 1) for i in range(values.shape[1])], fontsize=8)
    ax.set_yticks(range(values.shape[0]), [str(i + 1) for i in range(values.shape[0])], fontsize=8)
    ax.set_xlabel("head", fontsize=8)
    ax.set_ylabel("layer", fontsize=8)
    ax.tick_params(length=0)
    return image
