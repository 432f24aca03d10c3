from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from docs.figures import draw_learning_rates


def test_all_courses_rise_for_the_warm_up_and_then_go_their_own_way(tmp_path: Path, figures: list[Figure]) -> None:
    draw_learning_rates(tmp_path / "rates.png")
    (figure,) = figures
    (courses,) = figure.axes
    lines = {str(line.get_label()).split(",")[0]: np.asarray(line.get_xydata()) for line in courses.get_lines()}
    assert list(lines) == ["inverse_sqrt", "cosine", "trapezoid", "constant"]
    for name in ("inverse_sqrt", "cosine", "constant"):
        assert lines[name][:, 1].max() == pytest.approx(0.001, rel=0.01)
    assert lines["cosine"][-1, 1] == pytest.approx(0, abs=1e-9)
    assert lines["constant"][-1, 1] == pytest.approx(0.001)
    assert lines["inverse_sqrt"][-1, 1] == pytest.approx(0.001 / 6**0.5)
