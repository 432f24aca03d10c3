"""A trace of the first updates: what is in the file, what is said of it, and that training goes on."""

import gzip
import json
import re
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import record_function

from utils.training.rehearsal import LINES, RECORDED, SKIPPED, Tracer

CPU = torch.device("cpu")


def update() -> None:
    """Most of its time is one product, whatever else the machine does."""
    with record_function("data"):
        x = torch.ones(800, 800)
    with record_function("forward"):
        for _ in range(3):
            x = x @ x
        for act in (torch.exp, torch.sin, torch.cos, torch.tanh, torch.abs, torch.neg, torch.sqrt, torch.log):
            act(x[0])
        for join in (torch.add, torch.mul, torch.sub, torch.div, torch.maximum, torch.minimum):
            join(x[0], x[1])


def traced(folder: Path, n_updates: int) -> list[str]:
    said: list[str] = []
    with closing(Tracer(folder / "trace.json.gz", CPU, said.append)) as tracer:
        for _ in range(n_updates):
            update()
            tracer.on_update()
    return said


def events(folder: Path) -> list[dict[str, Any]]:
    with gzip.open(folder / "trace.json.gz", "rt", encoding="utf-8") as file:
        return [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]


def counts(folder: Path) -> Counter[str]:
    return Counter(event["name"] for event in events(folder))


def test_five_updates_are_recorded_after_three_and_training_goes_on(tmp_path: Path) -> None:
    said: list[str] = []
    with closing(Tracer(tmp_path / "trace.json.gz", CPU, said.append)) as tracer:
        for step in range(1, 21):
            assert (tmp_path / "trace.json.gz").exists() == (step > SKIPPED + RECORDED)
            assert bool(said) == (step > SKIPPED + RECORDED)
            update()
            tracer.on_update()
    found = counts(tmp_path)
    assert (found["data"], found["forward"], found["aten::mm"]) == (RECORDED, RECORDED, 3 * RECORDED)
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json.gz"]


def test_what_takes_the_time_is_said_and_where_to_look(tmp_path: Path) -> None:
    table, where = traced(tmp_path, 10)
    head, columns, *rows = table.strip().splitlines()
    parts = re.fullmatch(r"5 updates recorded, ms each: data (\S+)  forward (\S+)", head)
    assert parts is not None
    for part, name in zip(parts.groups(), ("data", "forward"), strict=True):
        microseconds = sum(event["dur"] for event in events(tmp_path) if event["name"] == name)
        assert float(part) == pytest.approx(microseconds / 1000 / RECORDED, abs=0.06)  # as rounded
    assert columns.split()[:4] == ["ms", "share", "calls", "operation,"]
    cells = [row.split() for row in rows]
    assert len(cells) == LINES
    assert cells[0][2:] == ["3", "aten::mm"]
    assert all(name.startswith("aten::") for *_, name in cells)  # no range of the Trainer's, no step of the profiler's
    times = [float(ms) for ms, *_ in cells]
    assert times == sorted(times, reverse=True)
    assert sum(float(share.rstrip("%")) for _, share, *_ in cells) <= 100.5
    assert times[0] < float(parts[2])  # of one update, not of all five
    assert all(len(line) <= 80 for line in (head, columns, *rows))
    assert str(tmp_path / "trace.json.gz") in where
    assert "https://ui.perfetto.dev" in where
    assert "chrome://tracing" in where


def test_a_training_that_ends_meanwhile_leaves_what_was_recorded(tmp_path: Path) -> None:
    said = traced(tmp_path, SKIPPED + 2)
    assert said[0].strip().startswith("2 updates recorded")
    assert counts(tmp_path)["forward"] == 2


@pytest.mark.parametrize("n_updates", [0, 1, SKIPPED])
def test_a_training_that_ends_before_says_that_there_is_no_trace(n_updates: int, tmp_path: Path) -> None:
    assert traced(tmp_path, n_updates) == ["No trace: the training ended before update 4, the first to be recorded"]
    assert not list(tmp_path.iterdir())


def test_an_error_in_the_training_is_not_hidden(tmp_path: Path) -> None:
    def fail() -> None:
        with closing(Tracer(tmp_path / "trace.json.gz", CPU, print)) as tracer:
            for _ in range(SKIPPED + 3):
                update()
                tracer.on_update()
            raise KeyError("learning_rate")

    with pytest.raises(KeyError, match="learning_rate"):
        fail()
    assert counts(tmp_path)["forward"] == 3


def test_nothing_is_written_on_standard_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    traced(tmp_path, 10)
    assert capfd.readouterr().err == ""
