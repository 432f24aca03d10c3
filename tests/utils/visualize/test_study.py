"""The picture shows each trial once, according to its state."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from utils.experiment.study import DrawnTrial, draw_study

TRIALS = [
    DrawnTrial(0, "complete", 20.0, {10: 5.0, 20: 20.0}),
    DrawnTrial(1, "pruned", 3.0, {10: 3.0}),
    DrawnTrial(3, "complete", 30.0, {10: 8.0, 20: 30.0}),
    DrawnTrial(4, "complete", 25.0, {10: 7.0, 20: 25.0}),
    DrawnTrial(5, "pruned", 4.0, {10: 4.0}),
]
IMPORTANCE = {"peak_lr": 0.7, "d_ff": 0.1, "dropout": 0.2}


def lines(ax: Axes) -> dict[str, list[tuple[float, float]]]:
    return {
        str(line.get_label()): list(zip(np.asarray(line.get_xdata()), np.asarray(line.get_ydata()), strict=True))
        for line in ax.get_lines()
    }


@pytest.mark.parametrize(
    ("minimised", "so_far", "best"), [(False, [20, 30, 30, 30], (3, 30)), (True, [20, 20, 20, 20], (0, 20))]
)
def test_the_history_has_every_trial_and_the_best_so_far(
    tmp_path: Path, figures: list[Figure], minimised: bool, so_far: list[float], best: tuple[int, float]
) -> None:
    draw_study(TRIALS, "BLEU", minimised, IMPORTANCE, tmp_path / "new" / "study.png")
    (figure,) = figures
    history = lines(figure.axes[0])
    assert history == {
        "best so far": list(zip([0, 3, 4, 5], so_far, strict=True)),
        "complete": [(0, 20), (3, 30), (4, 25)],
        "pruned": [(1, 3), (5, 4)],
        f"best, trial {best[0]}": [best],
    }
    assert figure.axes[0].get_ylabel() == "dev BLEU"
    with Image.open(tmp_path / "new" / "study.png") as image:
        image.load()
        assert image.format == "PNG"


def test_each_training_is_a_curve_and_each_pruned_one_ends_in_a_cross(tmp_path: Path, figures: list[Figure]) -> None:
    draw_study(TRIALS, "BLEU", False, {}, tmp_path / "study.png")
    drawn = figures[0].axes[1].get_lines()
    assert [np.asarray(line.get_xydata()).tolist() for line in drawn] == [
        [list(point) for point in trial.curve.items()] for trial in TRIALS
    ]
    assert "".join(str(line.get_marker()) for line in drawn) == "oxoox"
    assert all(line.get_markevery() == [-1] for line in drawn)
    assert [line.get_color() == "C3" for line in drawn] == [False, False, True, False, False]


def test_the_most_important_setting_stands_above_the_others(tmp_path: Path, figures: list[Figure]) -> None:
    draw_study(TRIALS, "BLEU", False, IMPORTANCE, tmp_path / "study.png")
    ax = figures[0].axes[2]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["d_ff", "dropout", "peak_lr"]
    assert [bar.get_width() for bar in ax.patches] == [0.1, 0.2, 0.7]  # type: ignore[attr-defined]
    assert [text.get_text() for text in ax.texts] == ["10%", "20%", "70%"]


def test_without_importance_there_are_two_panels(tmp_path: Path, figures: list[Figure]) -> None:
    draw_study(TRIALS, "BLEU", False, {}, tmp_path / "study.png")
    assert len(figures[0].axes) == 2


@pytest.mark.parametrize("trials", [TRIALS[1:2], TRIALS[:1]], ids=["pruned", "complete"])
def test_a_single_trial_is_enough(tmp_path: Path, figures: list[Figure], trials: list[DrawnTrial]) -> None:
    draw_study(trials, "BLEU", False, {}, tmp_path / "study.png")
    assert len(figures) == 1
    assert len(lines(figures[0].axes[0])) == (1 if trials[0].state == "pruned" else 3)
