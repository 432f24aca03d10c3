"""The run on a GPU, in small and on a CPU: what it writes is a translator, and nothing of it needs what a GPU lacks."""

import subprocess
import sys
import tarfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

from bench import gpu
from const.path import ROOT
from utils.file import read_json
from utils.load import load_run
from utils.training.report import read_log


def test_both_directions_are_trained_tested_and_kept(tmp_path: Path) -> None:
    for minutes in ("0.6", "3"):  # on a busy machine the first is over before the training has begun
        out = tmp_path / minutes
        options = ["--dry_run", "--minutes", minutes, "--out", str(out), "--commit", "abc"]
        command = [sys.executable, "-m", "bench.gpu", *options]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stderr
    *_, row, _, last = done.stdout.splitlines()
    assert row.startswith("| kftt_en_ja | ")
    assert last.startswith("kftt_ja_en_bleu=")
    result = read_json(out / "result.json")
    assert (result["commit"], list(result["runs"])) == ("abc", ["kftt_trunk", "kftt_ja_en", "kftt_en_ja"])
    assert result["runs"]["kftt_en_ja"]["direction"] == "en-ja"
    with tarfile.open(out / "files.tar.gz") as archive:
        archive.extractall(tmp_path / "kept", filter="data")
    for name in gpu.DIRECTIONS:
        parts = sorted(out.glob(f"{name}.safetensors.*"))
        folder = tmp_path / "kept" / name
        (folder / "model.safetensors").write_bytes(b"".join(part.read_bytes() for part in parts))
        model = load_run(folder, torch.device("cpu")).model
        assert model.output.weight is model.src_embedding.weight
        rates = [report["learning_rate"] for _, report in read_log(folder / "log.jsonl") if report["kind"] == "train"]
        assert rates[-1] < max(rates) / 2  # it fell by the clock


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (["numpy>=2.0", "sacrebleu[ja]>=2.5"], []),
        (["numpy", "no-such-package>=1; python_version < '3'"], []),
        (["no-such-package>=1", "sacrebleu[zz]"], ["no-such-package"]),
    ],
)
def test_what_is_missing_is_named(wanted: Sequence[str], expected: list[str]) -> None:
    assert list(gpu.missing(wanted)) == expected


def test_what_an_extra_needs_is_missed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Found:
        requires = ("numpy", "ghost>=1; extra == 'ja'", "other; extra == 'ko'")

    def distribution(name: str) -> Found:
        if name == "ghost":
            raise PackageNotFoundError(name)
        return Found()

    monkeypatch.setattr(gpu, "distribution", distribution)
    assert list(gpu.missing(["sacrebleu[ja]"])) == ["ghost"]
    assert list(gpu.missing(["sacrebleu"])) == []
