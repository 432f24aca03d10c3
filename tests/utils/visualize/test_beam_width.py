"""The picture shows every trial."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from utils.evaluation.verbs import Trial, draw_beam_width, legible


def points(line: Line2D) -> list[tuple[float, float]]:
    return list(zip(np.asarray(line.get_xdata()), np.asarray(line.get_ydata()), strict=True))


TRIALS = [Trial(w, a, 20 + w * a, 0.9 + a / 100) for w in (5, 1, 100) for a in (0.6, 0.0)]


def test_a_line_for_each_penalty_in_the_order_of_the_widths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(plt, "close", drawn.append)
    draw_beam_width(TRIALS, "KFTT dev", tmp_path / "beam.png")
    (figure,) = drawn
    monkeypatch.undo()
    quality, length = figure.axes
    lines = {str(line.get_label()): points(line) for line in quality.get_lines()}
    assert lines == {
        "length penalty 0": [(1, 20), (5, 20), (100, 20)],
        "length penalty 0.6": [(1, 20.6), (5, 23), (100, 80)],
    }
    assert points(length.get_lines()[1]) == [(1, 0.906), (5, 0.906), (100, 0.906)]
    assert "KFTT dev" in quality.get_title()
    assert [tick.get_text() for tick in quality.get_xticklabels()] == ["1", "5", "100"]
    assert (tmp_path / "beam.png").read_bytes().startswith(b"\x89PNG")
    plt.close(figure)


def test_numbers_do_not_stand_on_each_other() -> None:
    assert legible(range(1, 12)) == [1, 2, 3, 4, 5, 7, 9]
