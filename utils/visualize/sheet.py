"""Figures with fonts and sizes that are independent of earlier pictures; equal data give equal files."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import matplotlib.pyplot as plt
import matplotlib_fontja
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from utils.file import atomic_file

_DPI = 100


@contextmanager
def drawing(
    picture: Path,
    inches: tuple[float, float],
    dpi: float = _DPI,
    layout: Literal["constrained"] | None = "constrained",
) -> Iterator[Figure]:
    """Yield a figure, which is saved as PNG if the block ends without an error.

    Its fonts have glyphs for Japanese, and for SentencePiece's ▁.

    Args:
        picture: file to write.
        inches: width and height.
        dpi: pixels per inch.
        layout: constrained: Matplotlib places axes and labels; None: the block does.
    """
    with plt.rc_context():
        plt.rcdefaults()
        matplotlib_fontja.japanize()
        plt.rcParams["font.family"] = ["DejaVu Sans", *plt.rcParams["font.family"]]
        figure = plt.figure(figsize=inches, layout=layout)
        try:
            yield figure
            with atomic_file(picture) as draft:
                figure.savefig(draft, format="png", dpi=dpi)
        finally:
            plt.close(figure)


@contextmanager
def sheet(
    picture: Path,
    inches: tuple[float, float],
    rows: int = 1,
    columns: int = 1,
    widths: Sequence[float] | None = None,
    dpi: float = _DPI,
) -> Iterator[list[Axes]]:
    """Yield the axes of a drawing, row by row.

    Args:
        picture: file to write.
        inches: width and height of the sheet.
        rows: number of rows of axes.
        columns: number of columns of axes.
        widths: relative widths of the columns; None: all equal.
        dpi: pixels per inch.
    """
    with drawing(picture, inches, dpi) as figure:
        yield list(figure.subplots(rows, columns, squeeze=False, width_ratios=widths).flat)
