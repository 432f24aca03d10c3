"""Why scores are divided by √K (Vaswani et al. 2017, 3.2.1): wide heads would attend to a single key."""

import math
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.ticker import ScalarFormatter
from torch import Tensor

from layers.scaled_dot_product_attention import ScaledDotProductAttention
from utils.visualize.sheet import sheet

_WIDTHS = tuple(2**i for i in range(11))
_N_DRAWS, _N_KEYS = 512, 16


class Sharpness(NamedTuple):
    """How sharply queries of one width attend to keys, with all components drawn from N(0, 1)."""

    score_std: float
    largest_weight: float  # mean over queries


def sharpness(width: int, scaled: bool) -> Sharpness:
    """Return the sharpness of a head of width K.

    Args:
        width: K.
        scaled: whether to divide by √K, as attention does; if not, queries are multiplied by √K to undo it.
    """
    draw = torch.Generator().manual_seed(width)
    query, key = (torch.randn(_N_DRAWS, 1, n, width, generator=draw) for n in (1, _N_KEYS))
    if not scaled:
        query = query * math.sqrt(width)
    weights: Tensor = ScaledDotProductAttention()(query, key, key)[1]
    scores = query @ key.transpose(-2, -1) / math.sqrt(width)
    return Sharpness(scores.std().item(), weights.amax(-1).mean().item())


def draw_scaling(picture: Path) -> None:
    """Draw the spread of scores and the largest weight against the width of a head, with and without the division."""
    with sheet(picture, (9, 3.6), columns=2) as (spread, largest):
        for scaled, label, style in ((False, "q · k", "o--"), (True, "q · k / √K", "o-")):
            found = [sharpness(width, scaled) for width in _WIDTHS]
            spread.plot(_WIDTHS, [point.score_std for point in found], style, ms=4, label=label)
            largest.plot(_WIDTHS, [point.largest_weight for point in found], style, ms=4, label=label)
        spread.set(title="Scores", ylabel="standard deviation")
        spread.set_yscale("log", base=2)
        spread.yaxis.set_major_formatter(ScalarFormatter())
        largest.set(title=f"Softmax over {_N_KEYS} keys", ylabel="weight of the likeliest key", ylim=(0, 1.05))
        largest.axhline(1 / _N_KEYS, color="gray", lw=0.8, ls=":", label=f"1 / {_N_KEYS}")
        for axes in (spread, largest):
            axes.set_xscale("log", base=4, subs=[])
            axes.set(xlabel="width of a head, K")
            axes.xaxis.set_major_formatter(ScalarFormatter())
            axes.grid(alpha=0.3)
            axes.legend(frameon=False)
