"""BLEU and length of translations against beam size."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.ticker import NullFormatter, NullLocator, ScalarFormatter

from utils.evaluation.tuning import Trial
from utils.visualize.sheet import sheet


def draw_beam_width(trials: Sequence[Trial], text: str, picture: Path) -> None:
    """Draw BLEU and length against beam size, with a line for each length penalty, as a PNG.

    Args:
        trials: trials to draw.
        text: name of the translated text.
        picture: file to write.
    """
    with sheet(picture, (10, 4), columns=2, dpi=120) as (quality, length):
        widths = sorted({trial.beam_size for trial in trials})
        for penalty in sorted({trial.length_penalty for trial in trials}):
            line = sorted((t for t in trials if t.length_penalty == penalty), key=lambda trial: trial.beam_size)
            for axes, heights in ((quality, [t.bleu for t in line]), (length, [t.length_ratio for t in line])):
                axes.plot([t.beam_size for t in line], heights, "o-", ms=3, label=f"length penalty {penalty:g}")
        quality.set(title=f"BLEU of {text}", ylabel="BLEU")
        length.set(title="Length", ylabel="length of translations / of references")
        length.axhline(1, color="black", lw=0.8, ls=":")
        for axes in (quality, length):
            axes.set_xscale("log")
            axes.set(xlabel="beam width")
            axes.xaxis.set_major_formatter(ScalarFormatter())
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set_xticks(legible(widths))
            axes.grid(alpha=0.3)
        quality.legend(frameon=False)


def legible(widths: Sequence[int]) -> list[int]:
    """Return the widths that fit as labels on a logarithmic axis: each at least a quarter above the last."""
    shown: list[int] = []
    for width in sorted(widths):
        if not shown or width >= 1.25 * shown[-1]:
            shown.append(width)
    return shown
