import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from docs.figures import draw_label_smoothing, smoothed_losses


def test_losses_are_those_of_the_formula() -> None:
    losses = smoothed_losses([0.3, 0.9], 0.1)
    for loss, p in zip(losses.tolist(), (0.3, 0.9), strict=True):
        right, wrong = -math.log(p), -math.log((1 - p) / 99)
        assert loss == pytest.approx((0.9 + 0.1 / 100) * right + 0.1 * 99 / 100 * wrong, rel=1e-5)
    assert smoothed_losses([0.3], 0.0).item() == pytest.approx(-math.log(0.3), rel=1e-5)


def test_the_dots_stand_where_the_loss_is_least(tmp_path: Path, figures: list[Figure]) -> None:
    draw_label_smoothing(tmp_path / "smoothing.png")
    (figure,) = figures
    dots = [line for line in figure.axes[0].get_lines() if line.get_marker() == "o"]
    places = [float(np.asarray(dot.get_xdata())[0]) for dot in dots]
    assert places == pytest.approx([0.9 + 0.1 / 100, 0.8 + 0.2 / 100], abs=0.003)
