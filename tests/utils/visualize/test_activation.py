from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from docs.figures import draw_activations
from layers.feed_forward import ACTIVATION


def test_every_activation_and_its_slope(tmp_path: Path, figures: list[Figure]) -> None:
    draw_activations(tmp_path / "activations.png")
    (figure,) = figures
    value, slope = ([line for line in axes.get_lines() if line.get_label() in ACTIVATION] for axes in figure.axes)
    assert [line.get_label() for line in value] == [line.get_label() for line in slope] == list(ACTIVATION)
    for f, df in zip(value, slope, strict=True):
        x, y = f.get_xydata().T  # type: ignore[union-attr]
        between = (x[:-1] + x[1:]) / 2
        smooth = np.abs(between) > 0.02  # relu has a corner
        numeric, drawn = np.diff(y) / np.diff(x), np.interp(between, x, np.asarray(df.get_ydata()))
        np.testing.assert_allclose(numeric[smooth], drawn[smooth], atol=1e-3)
