"""The benchmark measures what it claims to; speed is not tested."""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import data as module
from utils.dataset.text import ParallelFiles, read_parallel
from utils.text.tokenizer import TokenizerConfig


def test_the_text_is_what_its_description_says(tmp_path: Path) -> None:
    files = ParallelFiles(tmp_path / "src", tmp_path / "tgt")
    module.write_text(files, 3000)
    text = read_parallel(files)
    src, tgt = ([line.split() for line in side] for side in (text.src, text.tgt))
    assert len(text) == 3000
    assert {len(line) for line in src} == set(range(5, 16))
    meaning: dict[str, str] = {}
    for src_line, tgt_line in zip(src, tgt, strict=True):
        for word, other in zip(src_line, reversed(tgt_line), strict=True):
            assert meaning.setdefault(word, other) == other
    counts = sorted((np.unique([word for line in src for word in line], return_counts=True)[1]).tolist(), reverse=True)
    assert counts[0] / sum(counts) == pytest.approx(0.037, abs=0.005)  # 1 / 2.7 over the sum of all 1 / (n + 2.7)
    again = ParallelFiles(tmp_path / "src2", tmp_path / "tgt2")
    module.write_text(again, 3000)
    assert read_parallel(again) == text


def test_a_small_text_is_prepared_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "N_WORDS", 500)
    options = {"folder": tmp_path / "new", "json": tmp_path / "found.json"}
    numbers = {"pairs": 2000, "vocab_size": 200, "sampling": 0.2}
    argv = [f"--{name}={value}" for name, value in {**options, **numbers}.items()]
    monkeypatch.setattr(sys, "argv", ["bench.data", *argv])
    measure, kept = module.measure, []

    def measured(files: ParallelFiles, root: Path, tokenizer: TokenizerConfig) -> Any:
        found = measure(files, root, tokenizer)
        kept.append({path: path.stat().st_mtime_ns for path in root.rglob("*.npy")})
        return found

    monkeypatch.setattr(module, "measure", measured)
    module.main()
    assert kept[0] == kept[1] != {}  # the second time, all is found in the cache
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r"(\w+=\d+(\.\d{3})? ?)+", last)
    figures = {name: float(value) for name, value in (pair.split("=") for pair in last.split())}
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["figures"] == pytest.approx(figures, abs=1e-3)
    assert figures["peak_together_mib"] >= figures["peak_main_mib"] > 50
    assert (figures["workers"], figures["peak_worker_mib"]) == (0, 0)  # so few are encoded in the process itself
    assert found["warm_s"].keys() == found["cold_s"].keys()
    for name, seconds in (("minutes", found["cold_s"]), ("warm_start_s", found["warm_s"])):
        before_training = sum(seconds.values()) - seconds["batches"]
        assert figures[name] == pytest.approx(before_training / (60 if name == "minutes" else 1), abs=1e-3)
    with pytest.raises(ValueError, match=r"/corpus-2000 is left over from an earlier run: delete it"):
        module.main()


def test_the_memory_of_processes_that_a_process_starts_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = {1: [10.0, 30.0, 20.0], 2: [5.0, 40.0, 0.0], 3: [7.0, 1.0, 0.0]}
    looks = iter(range(3))
    now = 0

    def look(_: int) -> list[int]:
        nonlocal now
        now = next(looks, 2)
        return [pid for pid in (2, 3) if memory[pid][now]]

    monkeypatch.setattr(module, "running_workers", look)
    monkeypatch.setattr(module, "resident", lambda pid: memory[pid][now])
    monkeypatch.setattr(module, "_LOOK_EVERY", 0.001)
    with module.MemoryWatch(1) as watch:
        end = time.monotonic() + 60
        while now < 2 and time.monotonic() < end:
            time.sleep(0.01)
    assert (watch.main, watch.largest_worker, watch.together) == (30.0, 40.0, 71.0)
    assert watch.workers == {2, 3}


@pytest.mark.parametrize("pairs", [-5, 0, 1999])
def test_too_few_pairs_are_refused(pairs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.data", "--folder", str(tmp_path), "--pairs", str(pairs)])
    with pytest.raises(ValueError, match=f"^--pairs {pairs}: give 2,000 or more"):
        module.main()
    assert not list(tmp_path.iterdir())


def test_a_failure_is_said_in_one_line(tmp_path: Path) -> None:
    nowhere = ParallelFiles(tmp_path / "no", tmp_path / "where")
    with pytest.raises(ValueError, match=r"^the preparing process failed: see above$"):
        module.measure(nowhere, tmp_path / "root", TokenizerConfig())


def test_the_examples_of_the_help_are_understood() -> None:
    examples = re.findall(r"^ +python -m bench.data(.*)$", module.build_parser().format_help(), re.M)
    assert len(examples) == 2
    for example in examples:
        module.build_parser().parse_args(re.split(r" {3,}", example)[0].split())
