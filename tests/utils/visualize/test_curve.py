import math
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from tests.strict import no_warning
from utils.training.plan import Progress
from utils.training.report import JsonlLog, Sample, StepReport, Validation
from utils.visualize import curve
from utils.visualize.curve import CurvePicture, draw_curves

# U+2028 stands inside sentences of real corpora, and is no end of a line
VALIDATION = Validation(2.0, {"bleu": 12.0, "chrf": 45.0}, {}, [Sample("都\u2028です", "capital", "capital")])


pytestmark = no_warning


def written(folder: Path, slope: float = 0.1) -> Path:
    observer = JsonlLog(folder / "log.jsonl", 0)
    for step in range(10, 61, 10):
        observer.on_step(Progress(step), StepReport(9 - step * slope, 1.0 + step, step * 0.1, 100, 10.0, 0.1, 0))
        if step % 30 == 0:
            scores = {"bleu": step / 3, "chrf": 45.0}
            observer.on_validation(Progress(step), VALIDATION._replace(scores=scores, loss=step / 50))
    observer.close()
    return folder / "log.jsonl"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return written(tmp_path)


def points(line: Line2D) -> list[list[float]]:
    return line.get_xydata().tolist()  # type: ignore[union-attr]


def test_the_lines_are_those_of_the_log(log: Path, tmp_path: Path, figures: list[Figure]) -> None:
    draw_curves({"": log}, tmp_path / "curve.png")
    steps = range(10, 61, 10)
    assert [{line.get_label(): points(line) for line in axes.get_lines()} for axes in figures[0].axes] == [
        {"train, as minimised": [[step, 9 - step * 0.1] for step in steps], "dev": [[30, 0.6], [60, 1.2]]},
        {"BLEU": [[30, 10], [60, 20]], "chrF": [[30, 45], [60, 45]]},
        {"learning rate": [[step, step * 0.1] for step in steps]},
        {"gradient norm": [[step, 1 + step] for step in steps]},
    ]
    for axes in figures[0].axes:
        assert len({line.get_color() for line in axes.get_lines()}) == len(axes.get_lines())


def test_several_runs_have_a_colour_each_and_are_named(tmp_path: Path, figures: list[Figure]) -> None:
    logs = {name: written(tmp_path / name, slope) for name, slope in (("wide", 0.1), ("deep", 0.05))}
    draw_curves(logs, tmp_path / "curve.png")
    (legend,) = figures[0].legends
    named = {
        text.get_text(): line.get_color() for text, line in zip(legend.get_texts(), legend.get_lines(), strict=True)
    }
    assert list(named) == ["wide", "deep"]
    assert named["wide"] != named["deep"]
    loss = figures[0].axes[0].get_lines()
    last = {(line.get_label(), line.get_color()): points(line)[-1][1] for line in loss}
    assert last == {
        ("train, as minimised", named["wide"]): pytest.approx(3),
        ("dev", named["wide"]): 1.2,
        ("train, as minimised", named["deep"]): pytest.approx(6),
        ("dev", named["deep"]): 1.2,
    }


def test_long_names_have_room(tmp_path: Path, figures: list[Figure]) -> None:
    log = written(tmp_path)
    for length in (5, 30, 45, 90):
        draw_curves({f"{'n' * length}{i}": log for i in range(4)}, tmp_path / "curve.png")
        figure = figures[-1]
        box = figure.legends[0].get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1


def test_what_is_null_in_the_log_is_a_gap(tmp_path: Path, figures: list[Figure]) -> None:
    observer = JsonlLog(tmp_path / "log.jsonl", 0)
    for step, loss in ((10, 3.0), (20, math.nan), (30, 2.0)):
        observer.on_step(Progress(step), StepReport(loss, math.inf, 0.1, 100, 10.0, 0.1, step))
    observer.close()
    draw_curves({"": tmp_path / "log.jsonl"}, tmp_path / "curve.png")
    first, gap, last = points(figures[0].axes[0].get_lines()[0])
    assert (first, last) == ([10, 3], [30, 2])
    assert math.isnan(gap[1])


def test_a_run_that_has_just_begun_can_be_drawn(tmp_path: Path) -> None:
    JsonlLog(tmp_path / "log.jsonl", 0).close()
    draw_curves({"": tmp_path / "log.jsonl"}, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 1000


def test_the_picture_is_a_png_of_sensible_size(log: Path, tmp_path: Path) -> None:
    picture = tmp_path / "curve.png"
    CurvePicture(log, picture).on_validation(Progress(60), VALIDATION)
    with Image.open(picture) as image:
        image.load()
        assert image.format == "PNG"
        assert 800 < image.width < 2000
        assert 300 < image.height < 1000
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 50
    assert {file.name for file in tmp_path.iterdir()} == {"log.jsonl", "curve.png"}
    assert not plt.get_fignums()


def test_a_line_that_is_only_half_written_is_left_out(log: Path, tmp_path: Path) -> None:
    log.write_bytes(log.read_bytes()[:-40])
    draw_curves({"": log}, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 1000


def test_the_command_draws_runs_by_the_names_of_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: list[Figure]
) -> None:
    for name in ("wide-20260102-030405", "deep"):
        written(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["curve", "wide-20260102-030405/", str(tmp_path / "deep"), "--picture", "both.png"]
    )
    curve.main()
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == ["wide", "deep"]
    assert (tmp_path / "both.png").stat().st_size > 1000


def test_a_folder_that_is_no_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["curve", str(tmp_path), "--picture", str(tmp_path / "x.png")])
    with pytest.raises(ValueError, match=rf"no log\.jsonl in {tmp_path}: give the folder of a run"):
        curve.main()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("runs", "complaint"),
    [
        (["a/run", "b/run"], "two runs are named run"),
        ([f"run{i}" for i in range(11)], "11 runs: give at most 10"),
    ],
)
def test_runs_that_could_not_be_told_apart_are_refused(
    runs: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["curve", *runs, "--picture", "curve.png"])
    with pytest.raises(ValueError, match=complaint):
        curve.main()
