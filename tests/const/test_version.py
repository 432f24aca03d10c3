import subprocess
import sys
import tomllib

import pytest

from const.path import ROOT
from const.version import VERSION


def test_the_version_is_the_projects() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == VERSION


@pytest.mark.parametrize("command", ["train.py", "translate.py", "evaluate.py", "serve.py", "export.py"])
def test_a_command_says_its_version(command: str) -> None:
    said = subprocess.run([sys.executable, ROOT / command, "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"{command} {VERSION}\n"
    assert said.stderr == ""
