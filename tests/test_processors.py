"""What asks for the capabilities of a processor holds on older ones, too; `make rehearse` runs all tests so."""

import os
import subprocess
import sys

import pytest

from const.path import ROOT
from tests.processors import PROCESSORS

FILES = [f"tests/test_{name}.py" for name in ("bench", "packed", "run", "system")]


@pytest.mark.parametrize(("name", "said"), [("avx2", "AVX2, without bf16"), ("sse", "DEFAULT, without bf16")])
def test_as_on_an_older_processor(name: str, said: str) -> None:
    command = [sys.executable, "-m", "pytest", "-m", "processor and not gpu", *FILES]
    environment = os.environ | PROCESSORS[name]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0, done.stdout
    assert f"processor: {said}\n" in done.stdout
    assert "skipped" not in done.stdout.splitlines()[-1]
