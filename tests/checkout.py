"""What belongs to the project: the files that git tracks."""

import subprocess

import pytest

from const.path import ROOT


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout of git: nothing says which files belong to the project")
    return listed.stdout.splitlines()


def python_sources() -> dict[str, str]:
    """Path and text of each module that is not a test."""
    paths = [path for path in tracked() if path.endswith(".py") and not path.startswith("tests/")]
    return {path: (ROOT / path).read_text(encoding="utf-8") for path in paths if (ROOT / path).exists()}
