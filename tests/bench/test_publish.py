import json
from pathlib import Path

import pytest

from bench.measure import Figure, add_json_option, publish
from utils.command import Parser


def test_a_place_that_no_file_can_take_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = Parser(prog="bench")
    add_json_option(parser)
    file = tmp_path / "figures.json"
    assert parser.parse_args(["--json", str(file)]).json == file
    assert parser.parse_args([]).json is None
    with pytest.raises(SystemExit):
        parser.parse_args(["--json", str(tmp_path)])
    assert f"argument --json: {tmp_path} exists and is not a file: give another name" in capsys.readouterr().err


FIGURES: dict[str, Figure] = {"speed": 2.0, "kills": 30, "full_disk": "tmpfs"}


def test_figures_are_a_line_for_people_and_a_file_for_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    publish(FIGURES, {"name": "demo"}, file)
    assert capsys.readouterr().out == "\nspeed=2.000 kills=30 full_disk=tmpfs\n"
    assert json.loads(file.read_text(encoding="utf-8")) == {"name": "demo", "figures": FIGURES}
    publish(FIGURES, {}, None)
    capsys.readouterr()
    with pytest.raises(ValueError, match="is not a file"):
        publish(FIGURES, {}, tmp_path)
    assert capsys.readouterr().out  # what was measured is not lost
    assert list(tmp_path.iterdir()) == [file]
