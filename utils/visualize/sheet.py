"""A sheet to draw on, whose fonts and sizes do not depend on what was drawn before: equal numbers give equal files."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib.pyplot as plt
import matplotlib_fontja
from matplotlib.axes import Axes

from utils.file import atomic_file

_DPI = 100


@contextmanager
def sheet(
    picture: Path, inches: tuple[float, float], rows: int = 1, columns: int = 1, widths: Sequence[float] | None = None
) -> Iterator[list[Axes]]:
    """Yield axes, row by row; what was drawn on them becomes a PNG if the block ends well.

    Args:
        picture: where to draw.
        inches: width and height of the sheet.
        rows: of axes.
        columns: of axes.
        widths: of the columns, relative to each other; None: all alike.
    """
    with plt.rc_context():
        plt.rcdefaults()
        matplotlib_fontja.japanize()
        plt.rcParams["font.family"] = ["DejaVu Sans", *plt.rcParams["font.family"]]
        figure, axes = plt.subplots(
            rows, columns, figsize=inches, squeeze=False, width_ratios=widths, layout="constrained"
        )
        try:
            yield list(axes.flat)
            with atomic_file(picture) as draft:
                figure.savefig(draft, format="png", dpi=_DPI)
        finally:
            plt.close(figure)
