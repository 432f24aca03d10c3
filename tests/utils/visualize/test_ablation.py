from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tests.strict import no_warning
from utils.experiment.ablation import Recipe, draw_ablation

BASE = [30.0, 31.0]
RECIPES = [
    Recipe("norm", "last", [28.0, 29.0], 1.0, "worse"),
    Recipe("activation", "GELU", [30.5, 30.75], 1.0, "no difference seen"),
    Recipe("activation", "京都 α = 5", [32.0, 33.0], 1.0, "better"),
    Recipe("beam", "10", [30.25, 30.5], 0.25, "no difference seen"),
]
LABELS = ["base", "norm", "last", "activation", "GELU", "京都 α = 5", "beam", "10"]


pytestmark = no_warning


def drawn(figures: list[Figure], picture: Path, recipes: list[Recipe] = RECIPES) -> Axes:
    draw_ablation(BASE, recipes, "a title", "dev BLEU", picture)
    assert picture.stat().st_size > 1000
    (axes,) = figures[-1].axes
    return axes


def marks(axes: Axes, marker: str) -> dict[float, list[float]]:
    """Positions of these markers, by row."""
    found: dict[float, list[float]] = {}
    for line in axes.get_lines():
        if line.get_marker() == marker:
            for x, y in zip(np.asarray(line.get_xdata()), np.asarray(line.get_ydata()), strict=True):
                found.setdefault(float(y), []).append(float(x))
    return found


def test_a_line_for_each_recipe_under_the_heading_of_its_switch(tmp_path: Path, figures: list[Figure]) -> None:
    axes = drawn(figures, tmp_path / "a.png")
    labels = axes.get_yticklabels()
    assert [label.get_text() for label in labels] == LABELS
    assert [label.get_text() for label in labels if label.get_fontweight() == "bold"] == ["norm", "activation", "beam"]
    assert axes.yaxis_inverted()  # the base at the top


def test_seeds_are_dots_and_their_mean_a_mark(tmp_path: Path, figures: list[Figure]) -> None:
    axes = drawn(figures, tmp_path / "a.png")
    assert marks(axes, "o") == {0: BASE, 2: [28.0, 29.0], 4: [30.5, 30.75], 5: [32.0, 33.0], 7: [30.25, 30.5]}
    assert marks(axes, "|") == {0: [30.5], 2: [28.5], 4: [30.625], 5: [32.5], 7: [30.375]}
    numbers = {text.get_position()[1]: text.get_text() for text in axes.texts}
    assert numbers == {0: "30.50", 2: "-2.00", 4: "+0.12", 5: "+2.00", 7: "-0.12"}


def test_the_band_around_the_base_is_that_of_each_line(tmp_path: Path, figures: list[Figure]) -> None:
    axes = drawn(figures, tmp_path / "a.png")
    bands = {round(p.get_y() + p.get_height() / 2): (p.get_x(), p.get_x() + p.get_width()) for p in axes.patches}  # type: ignore[attr-defined]
    assert bands == {2: (29.5, 31.5), 4: (29.5, 31.5), 5: (29.5, 31.5), 7: (30.25, 30.75)}
    (line,) = (
        line
        for line in axes.get_lines()
        if line.get_linestyle() == "-" and len(np.asarray(line.get_xdata())) == 2 and line.get_marker() == "None"
    )
    assert list(np.asarray(line.get_xdata())) == [30.5, 30.5]


def test_colours_tell_the_verdicts_and_the_legend_tells_the_colours(tmp_path: Path, figures: list[Figure]) -> None:
    axes = drawn(figures, tmp_path / "a.png")
    shown = {
        float(np.asarray(line.get_ydata())[0]): line.get_color()
        for line in axes.get_lines()
        if line.get_marker() == "|"
    }
    assert len({shown[2], shown[4], shown[5]}) == 3
    assert shown[4] == shown[7]
    (legend,) = figures[-1].legends
    handles = zip(legend.get_texts(), legend.legend_handles, strict=True)
    named = {text.get_text(): handle.get_color() for text, handle in handles if isinstance(handle, Line2D)}
    assert named["mean: worse"] == shown[2]
    assert named["mean: no difference seen"] == shown[4]
    assert named["mean: better"] == shown[5]
    assert "mean: unknown" not in named


def test_what_lies_far_off_is_an_arrow_and_leaves_the_others_their_room(tmp_path: Path, figures: list[Figure]) -> None:
    far = [*RECIPES, Recipe("rate", "huge", [0.5, 1.5], 1.0, "worse")]
    axes = drawn(figures, tmp_path / "a.png", far)
    low, high = axes.get_xlim()
    assert 26 < low < 28
    assert 33 < high < 35
    (arrow,) = marks(axes, "<").values()
    assert low < arrow[0] < 28
    assert 9 not in marks(axes, "o")
    assert axes.texts[-1].get_text() == "-29.50"


@pytest.mark.parametrize("recipes", [RECIPES[:1], [Recipe("norm", "last", [28.0], None, "unknown")], RECIPES * 7])
def test_nothing_is_drawn_over_anything_else(tmp_path: Path, figures: list[Figure], recipes: list[Recipe]) -> None:
    """Labels and numbers do not overlap or leave the sheet, with two rows or fifty."""
    axes = drawn(figures, tmp_path / "a.png", recipes)
    figure = figures[-1]
    for texts in (axes.get_yticklabels(), axes.texts):
        boxes = [text.get_window_extent() for text in texts]
        assert all(above.y0 >= below.y1 - 1 for above, below in pairwise(boxes))
        assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)
    (legend,) = figure.legends
    assert legend.get_window_extent().y1 < axes.xaxis.label.get_window_extent().y0
    assert legend.get_window_extent().y0 >= 0


def test_equal_scores_everywhere_can_be_drawn(tmp_path: Path, figures: list[Figure]) -> None:
    draw_ablation([5.0], [Recipe("norm", "last", [5.0], None, "unknown")], "", "", tmp_path / "a.png")
    low, high = figures[-1].axes[0].get_xlim()
    assert low < 5 < high
