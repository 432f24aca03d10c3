import tomllib

import pytest

from const.corpora import VERSION
from const.path import ROOT
from tests.test_surface import PARSERS


def test_the_version_is_the_projects() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == VERSION


@pytest.mark.parametrize("command", PARSERS)
def test_a_command_says_its_version(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        PARSERS[command]().parse_args(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr() == (f"{command} {VERSION}\n", "")
