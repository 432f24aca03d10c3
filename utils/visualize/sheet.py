"""Where pictures are drawn: fonts and sizes do not depend on what was drawn before, equal numbers give equal files."""

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
    """Yield a figure; what was drawn on it becomes a PNG if the block ends well.

    Its fonts have a glyph for Japanese, and for the ▁ of SentencePiece.

    Args:
        picture: where to draw.
        inches: width and height.
        dpi: pixels an inch.
        layout: who finds a place for axes and labels: Matplotlib, or (None) the block itself.
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
        picture: where to draw.
        inches: width and height of the sheet.
        rows: of axes.
        columns: of axes.
        widths: of the columns, relative to each other; None: all alike.
        dpi: pixels an inch.
    """
    with drawing(picture, inches, dpi) as figure:
        yield list(figure.subplots(rows, columns, squeeze=False, width_ratios=widths).flat)
