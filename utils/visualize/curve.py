"""Training curves of one or several runs, and the figure that every picture of the project is drawn on."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from utils.file import atomic_file
from utils.run import distinct_names, titles
from utils.training.report import LOG, SCORES, Observer, Validation, read_log
from utils.training.schedule import Progress
from utils.visualize.japanese import translate_labels

if TYPE_CHECKING:  # Matplotlib is slow to import: only where a picture is drawn
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 100


@contextmanager
def drawing(
    picture: Path,
    inches: tuple[float, float],
    dpi: float = _DPI,
    layout: Literal["constrained"] | None = "constrained",
) -> Iterator["Figure"]:
    """Yield a figure, which is saved as PNG if the block ends without an error; equal data give equal files.

    Its labels are in Japanese if the file is called NAME.ja.png, and if there is such a file beside NAME.png, it is
    drawn again, too. Fonts and sizes are independent of earlier pictures, and have glyphs for Japanese and for
    SentencePiece's ▁.

    Args:
        layout: constrained: Matplotlib places axes and labels; None: the block does.
    """
    import matplotlib.pyplot as plt
    import matplotlib_fontja

    with plt.rc_context():
        plt.rcdefaults()
        matplotlib_fontja.japanize()
        plt.rcParams["font.family"] = ["DejaVu Sans", *plt.rcParams["font.family"]]
        figure = plt.figure(figsize=inches, layout=layout)
        try:
            yield figure
            for file in (picture, picture.with_suffix(".ja.png")):
                if file == picture or file.exists():
                    if file.suffixes[-2:-1] == [".ja"]:
                        translate_labels(figure)
                    with atomic_file(file) as draft:
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
) -> Iterator[list["Axes"]]:
    """Yield the axes of a drawing, row by row, with columns of these relative widths."""
    with drawing(picture, inches, dpi) as figure:
        yield list(figure.subplots(rows, columns, squeeze=False, width_ratios=widths).flat)


class Curve(NamedTuple):
    """A line to draw for each run, and its style."""

    kind: str  # of log record
    field: str
    label: str
    style: dict[str, Any]  # Matplotlib's keyword arguments


_MAX_RUNS = 10
_LEGEND_LETTERS = 100  # that fit side by side above the panels
_FINE: dict[str, Any] = {"lw": 0.7, "alpha": 0.8}
_DOTTED: dict[str, Any] = {"marker": "o", "ms": 3}
_PANELS = {
    ("Loss", "nats"): [
        Curve("train", "nll", "train", _FINE),
        Curve("dev", "loss", "dev", _DOTTED),
        Curve("train", "loss", "train, as minimised", _FINE | {"ls": ":"}),
    ],
    ("Scores", "of dev text"): [
        Curve("dev", name, label, _DOTTED | {"ls": line})
        for (name, label), line in zip(SCORES.items(), cycle(("-", "--")), strict=False)
    ],
    ("Learning rate", ""): [Curve("train", "learning_rate", "learning rate", {})],
    ("Gradient", "norm before clipping"): [Curve("train", "gradient_norm", "gradient norm", _FINE)],
}


def draw_curves(logs: Mapping[str, Path], picture: Path) -> None:
    """Draw loss, scores, learning rate and gradient norm of the logs of named runs, as a PNG; a colour for each run."""
    from matplotlib.lines import Line2D

    runs = [[record for _, record in read_log(log)] for log in logs.values()]
    for record in chain(*runs):
        if "nll" in record:  # what is minimised does not compare with dev: it is drawn only of logs without the NLL
            record.pop("loss", None)
    logged = {(record["kind"], name) for record in chain(*runs) for name in record}
    with drawing(picture, (11, 7), dpi=120) as figure:
        panels = figure.subplots(2, 2, sharex=True)
        for axes, ((title, unit), known) in zip(panels.flat, _PANELS.items(), strict=True):
            curves = [curve for curve in known if (curve.kind, curve.field) in logged]
            for i, records in enumerate(runs):
                for j, curve in enumerate(curves):
                    points = [(r["step"], r.get(curve.field)) for r in records if r["kind"] == curve.kind]
                    # a null in the log becomes NaN and is not drawn
                    steps, values = np.array(points, dtype=float).reshape(-1, 2).T
                    color = f"C{j if len(runs) == 1 else i}"
                    axes.plot(steps, values, color=color, label=curve.label, **curve.style)
            axes.set(title=title, ylabel=unit)
            axes.grid(alpha=0.3)
            if len(curves) > 1:
                handles = [Line2D([], [], color="black", label=curve.label, **curve.style) for curve in curves]
                axes.legend(frameon=False, handles=axes.get_lines() if len(runs) == 1 else handles)
        for axes in (panels[0, 1], panels[1, 0]):
            axes.set(ylim=(0, None))
        if np.isfinite(panels[1, 1].dataLim.minposy):  # there may be no finite gradient at all to take the logarithm of
            panels[1, 1].set(yscale="log")
        for axes in panels[1]:
            axes.set(xlabel="updates")
        if len(runs) > 1:
            handles = [Line2D([], [], color=f"C{i}", lw=3, label=name) for i, name in enumerate(logs)]
            abreast = max(1, min(len(runs), 3, _LEGEND_LETTERS // max(map(len, logs))))
            figure.legend(frameon=False, handles=handles, loc="outside upper center", ncols=abreast)


def draw_runs(folders: Sequence[Path], picture: Path) -> None:
    """Draw the curves of runs by the names of their folders."""
    names = distinct_names(folders)
    if len(names) > _MAX_RUNS:
        raise ValueError(f"{len(names)} runs: give at most {_MAX_RUNS}, more colours cannot be told apart")
    for folder in folders:
        if not (folder / LOG).is_file():
            raise ValueError(f"no {LOG} in {folder}: give the folder of a run, such as one under pickles/")
    draw_curves({title: folder / LOG for title, folder in zip(titles(names), folders, strict=True)}, picture)


class CurvePicture(Observer):
    """Redraws the curves at each validation, from the log that an earlier observer writes."""

    def __init__(self, log: Path, picture: Path) -> None:
        self._log, self._picture = log, picture

    def on_validation(self, progress: Progress, validation: Validation) -> None:  # noqa: ARG002
        """Redraw the curves."""
        draw_curves({"": self._log}, self._picture)
