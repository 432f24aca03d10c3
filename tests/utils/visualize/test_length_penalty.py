from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from docs.figures import draw_length_penalty
from utils.search.constraint import SearchConfig


def test_lines_are_what_the_search_divides_by(tmp_path: Path, figures: list[Figure]) -> None:
    draw_length_penalty(tmp_path / "penalty.png")
    (figure,) = figures
    divisor, score = figure.axes
    lines = {str(line.get_label()): np.asarray(line.get_ydata()) for line in divisor.get_lines()}
    gnmt = SearchConfig(length_penalty=0.6)
    np.testing.assert_allclose(lines["α = 0.6, gnmt"], [gnmt.penalty(n) for n in range(1, 51)])
    assert set(lines["α = 0"]) == {1}
    assert list(lines["α = 1, length"]) == list(range(1, 51))
    scores = [np.asarray(line.get_ydata()) for line in score.get_lines()]
    assert (np.diff(scores[0]) < 0).all()  # without a penalty, longer is worse
    assert np.ptp(scores[-1]) < 1e-9  # the mean of equal tokens
