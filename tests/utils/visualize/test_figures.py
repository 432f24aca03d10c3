"""The command behind `make figures`: what it draws and leaves out, and that pictures are reproducible."""

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from const.path import FIGURE, ROOT
from docs import figures
from docs.figures import DRAWN, ELSEWHERE, FROM_RUNS, draw_all, draw_positions, learned_table
from layers.positional_encoding import sinusoid
from tests.tiny import MODEL, translating
from utils.training.checkpoint import write_weights
from utils.visualize.curve import draw_curves

LOG = '{"kind": "train", "step": 10, "loss": 2.0, "learning_rate": 0.1, "gradient_norm": 1.0}\n'


@pytest.fixture
def pickles(tmp_path: Path) -> Path:
    """Two demos, of which the first by name is the newest, and a run with learned positions."""
    for age, name in enumerate(("demo-20260101-000000", "demo-20260102-000000")):
        folder = tmp_path / "pickles" / name
        folder.mkdir(parents=True)
        (folder / "log.jsonl").write_text(LOG.replace("2.0", f"{2 + age}"))
        os.utime(folder / "log.jsonl", (1000 - age, 1000 - age))
    learned = tmp_path / "pickles" / "multi30k_de_en_words-20260101-000000"
    net = translating(replace(MODEL, positions="learned"))
    write_weights(net.state_dict(), learned / "model.safetensors", 0.0)
    return tmp_path / "pickles"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace all pictures that need no run by a single one."""
    monkeypatch.setattr(figures, "DRAWN", {"masks": DRAWN["masks"]})


@pytest.mark.usefixtures("few")
def test_without_runs_each_picture_that_is_missing_is_named_with_its_remedy(tmp_path: Path) -> None:
    said: list[str] = []
    draw_all(tmp_path / "figure", tmp_path / "pickles", said.append)
    assert [path.name for path in (tmp_path / "figure").iterdir()] == ["masks.png"]
    assert said[0] == "drawn: masks.png"
    for line, name in zip(said[1:], [*FROM_RUNS, *ELSEWHERE], strict=True):
        assert line.startswith(f"left out: {name}.png, ")
        assert "\n" not in line
    assert "a run of demo: make demo" in said[1]


@pytest.mark.usefixtures("few")
def test_with_runs_it_draws_from_the_newest(tmp_path: Path, pickles: Path) -> None:
    said: list[str] = []
    draw_all(tmp_path / "figure", pickles, said.append)
    assert {path.stem for path in (tmp_path / "figure").iterdir()} == {"masks", *FROM_RUNS}
    assert "drawn: demo_curve.png, from demo-20260101-000000" in said
    draw_curves({"": pickles / "demo-20260101-000000" / "log.jsonl"}, tmp_path / "expected" / "demo_curve.png")
    table = learned_table(next(pickles.glob("multi30k*")) / "model.safetensors")
    tables = {"sinusoid": sinusoid(*table.shape), "learned, multi30k_de_en_words": table}
    draw_positions(tables, tmp_path / "expected" / "learned_positions.png")
    for expected in (tmp_path / "expected").iterdir():
        assert (tmp_path / "figure" / expected.name).read_bytes() == expected.read_bytes()


def test_every_picture_comes_out_the_same_again(tmp_path: Path) -> None:
    names = list(DRAWN)
    for folder, order in (("a", names), ("b", names[::-1])):
        for name in order:
            DRAWN[name](tmp_path / folder / f"{name}.png")
    for name in names:
        first, second = (tmp_path / folder / f"{name}.png" for folder in "ab")
        assert first.read_bytes() == second.read_bytes(), name


@pytest.mark.parametrize("name", [*DRAWN, *FROM_RUNS, *ELSEWHERE])
def test_the_pictures_in_the_repository_are_modest_and_shown(name: str) -> None:
    picture = FIGURE / f"{name}.png"
    assert picture.stat().st_size < 150_000
    with Image.open(picture) as image:
        assert image.width <= 1400
    pages = [*ROOT.glob("README*.md"), *(ROOT / "docs").glob("*.md")]
    assert any(f"figure/{name}.png" in page.read_text(encoding="utf-8") for page in pages)


def test_presets_and_commands_that_are_named_are_there() -> None:
    for source in FROM_RUNS.values():
        preset = ROOT / "const" / "preset" / f"{source.preset}.yaml"
        assert f"\nname: {source.preset}\n" in preset.read_text(encoding="utf-8")
    for command in [*ELSEWHERE.values(), *(source.command for source in FROM_RUNS.values())]:
        for script in re.findall(r"\S+\.(?:py|yaml)", command):
            assert (ROOT / script).is_file()


@pytest.mark.usefixtures("few")
def test_the_command_draws_where_it_is_told(
    tmp_path: Path, pickles: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(next(pickles.glob("multi30k*")))
    monkeypatch.setattr(figures, "PICKLES", pickles)
    monkeypatch.setattr("sys.argv", ["figures", "--folder", str(tmp_path / "here")])
    figures.main()
    assert {path.stem for path in (tmp_path / "here").iterdir()} == {"masks", "demo_curve"}
    assert "left out: learned_positions.png" in capsys.readouterr().out
