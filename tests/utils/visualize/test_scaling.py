import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from docs.figures import draw_scaling, sharpness


@pytest.mark.parametrize("width", [4, 64, 1024])
def test_the_division_takes_the_width_out_of_the_scores(width: int) -> None:
    assert sharpness(width, scaled=True).score_std == pytest.approx(1, rel=0.1)
    assert sharpness(width, scaled=False).score_std == pytest.approx(math.sqrt(width), rel=0.1)


def test_without_it_wide_heads_look_at_one_key() -> None:
    assert sharpness(1024, scaled=False).largest_weight > 0.95
    assert sharpness(1024, scaled=True).largest_weight == pytest.approx(sharpness(64, True).largest_weight, rel=0.1)


def test_both_lines_are_drawn_in_both_panels(tmp_path: Path, figures: list[Figure]) -> None:
    draw_scaling(tmp_path / "scaling.png")
    (figure,) = figures
    spread, largest = figure.axes
    plain, scaled = (np.asarray(line.get_ydata()) for line in spread.get_lines())
    assert plain[-1] > 30 * scaled[-1]
    assert [line.get_label() for line in largest.get_lines()[:2]] == ["q · k", "q · k / √K"]
