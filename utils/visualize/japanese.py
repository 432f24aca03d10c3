"""The labels of all pictures in Japanese: a picture that is called NAME.ja.png has them."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
LABELS: dict[str, str] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def in_japanese(label: str) -> str:
    """Return a label in Japanese, if it is known, with its own numbers; what stands before it, as in "RUN: label"."""
    known, numbers = _NUMBER.sub("#", label), iter(_NUMBER.findall(label))
    if known in LABELS:
        return re.sub("#", lambda _: next(numbers), LABELS[known])
    before, colon, rest = label.partition(": ")
    return f"{before}: {LABELS[rest]}" if colon and rest in LABELS else label


def translate_labels(figure: "Figure") -> None:
    """Replace all labels of a figure."""
    from matplotlib.text import Text

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            names = [tick.get_text() for tick in axis.get_ticklabels()]
            if names != (ours := [in_japanese(name) for name in names]):
                axis.set_ticklabels(ours)  # of ticks that have been set: others have no name yet
    for text in figure.findobj(Text):
        text.set_text(in_japanese(text.get_text()))
