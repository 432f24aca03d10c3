import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure
from PIL import Image

from utils.training.observer import JsonlLog, Sample, StepReport, Validation
from utils.training.plan import Progress
from utils.visualize.curve import CurvePicture, draw_curve

# U+2028 stands inside sentences of real corpora, and is no end of a line
VALIDATION = Validation(2.0, 12.0, 45.0, "", "", [Sample("都\u2028です", "capital", "capital")])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    observer = JsonlLog(tmp_path / "log.jsonl", 0)
    for step in range(10, 61, 10):
        observer.on_step(Progress(step), StepReport(9 - step / 10, 1.0, 0.1, 100, 10.0, 0.1))
        if step % 30 == 0:
            observer.on_validation(Progress(step), VALIDATION._replace(bleu=step / 3, loss=step / 50))
    observer.close()
    return tmp_path / "log.jsonl"


def test_the_lines_are_those_of_the_log(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(plt, "close", figures.append)
    draw_curve(log, tmp_path / "curve.png")
    monkeypatch.undo()
    lines = {line.get_label(): line.get_xydata().tolist() for ax in figures[0].axes for line in ax.get_lines()}  # type: ignore[union-attr]
    plt.close(figures[0])
    assert lines == {
        "train (smoothed labels)": [[step, 9 - step / 10] for step in range(10, 61, 10)],
        "dev": [[30, 0.6], [60, 1.2]],
        "BLEU": [[30, 10], [60, 20]],
        "chrF2": [[30, 45], [60, 45]],
    }


def test_the_picture_is_a_png_of_sensible_size(log: Path, tmp_path: Path) -> None:
    picture = tmp_path / "curve.png"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
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
    draw_curve(log, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 1000
