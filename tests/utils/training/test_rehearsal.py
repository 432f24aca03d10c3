"""What a dry run says: counted by hand, timed by a clock of our own."""

import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

from const.path import ROOT
from models.transformer import Transformer
from tests.tiny import MODEL
from utils.dataset.batch import Epoch
from utils.dataset.ids import TokenArray, TokenPairs
from utils.training.rehearsal import parameter_table, rehearse

LENGTHS = [*[4] * 7, *[9] * 20, 17]  # of 36 tokens a batch, </s> included: 7 x 5, six of 3 x 10 and 2 x 10, 1 x 18


def epoch() -> Epoch:
    sides = [TokenArray.of([[4] * n for n in LENGTHS], 8), TokenArray.of([[5] * (n - 1) for n in LENGTHS], 8)]
    return Epoch(TokenPairs(*sides), tokens_per_batch=36, max_tokens=None, multiple=1, key=(1, 0))


class Counting:
    """A trainer that learns nothing and lets a clock run: a second a row, a minute at the first sight of a shape."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.net: nn.Module = nn.Linear(2, 3)
        self.device = torch.device("cpu")
        self.updates: list[list[tuple[int, ...]]] = []
        self.clock = 0.0
        self.hold = 0  # bytes
        monkeypatch.setattr(time, "perf_counter", lambda: self.clock)

    def train_step(self, micro_batches: Iterable[Any]) -> None:
        shapes = [tuple(batch.src.shape) for batch in micro_batches]
        self.clock += sum(rows for rows, _ in shapes) + 60 * (shapes not in self.updates)
        self.updates.append(shapes)
        torch.ones(self.hold, dtype=torch.uint8)


def said(trainer: Counting, accumulate: int = 1, n_processes: int = 1) -> list[str]:
    """All but the table of parameters."""
    blocks: list[str] = []
    rehearse(trainer, epoch(), accumulate, blocks.append, n_processes)
    assert blocks[0] == parameter_table(trainer.net)
    return "\n".join(blocks[1:]).splitlines()


def test_shapes_and_times_are_those_of_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = said(Counting(monkeypatch))
    del lines[5]  # memory
    assert lines == [
        "an epoch: 9 batches, 9 updates, padding 0.0%",
        "  smallest batch  1 x 18 source and 1 x 17 target tokens",
        "  median batch    3 x 10 source and 3 x 9 target tokens",
        "  largest batch   7 x 5 source and 7 x 4 target tokens",
        "an update: 3 s at the median batch, 7 s at the largest",
        "  an epoch takes  27 s, validations not included",
    ]


def test_an_update_is_of_as_many_batches_as_are_accumulated(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Counting(monkeypatch)
    lines = said(trainer, accumulate=4)
    assert {tuple(shapes) for shapes in trainer.updates} == {((3, 10),) * 4, ((7, 5),) * 4}
    assert lines[0].startswith("an epoch: 9 batches, 3 updates of 4")
    assert lines[4] == "an update: 12 s at the median batch, 28 s at the largest"
    assert lines[6].startswith("  an epoch takes  36 s")


def test_processes_that_share_an_update_rehearse_their_own_batches_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Counting(monkeypatch)
    lines = said(trainer, accumulate=4, n_processes=2)
    assert {tuple(shapes) for shapes in trainer.updates} == {((3, 10),) * 2, ((7, 5),) * 2}
    assert lines[0].startswith("an epoch: 9 batches, 3 updates of 4")
    assert lines[4] == "an update: 6 s at the median batch, 14 s at the largest"
    assert lines[6].startswith("  an epoch takes  18 s")


def peak_with_and_without() -> tuple[int, int]:
    """MiB that a rehearsal says, when an update holds 300 of them and when it holds none."""

    def peak(lines: list[str]) -> int:
        return int(lines[5].split()[1].replace(",", ""))

    torch.ones(600 * 2**20, dtype=torch.uint8)  # before: does not count
    with pytest.MonkeyPatch.context() as monkeypatch:
        trainer = Counting(monkeypatch)
        said(trainer)  # loads what is loaded once
        without = peak(said(trainer))
        trainer.hold = 300 * 2**20
        return peak(said(trainer)), without


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux forgets a peak")
def test_memory_is_that_of_the_updates() -> None:
    """In a process of its own: a training before this one may have had freed memory kept."""
    program = f"from {__name__} import *; print(*peak_with_and_without())"
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    peak, without = map(int, found.stdout.split())
    assert 290 < peak - without < 350


@pytest.mark.parametrize("tie", ["none", "target", "all"])
def test_parameters_are_counted_once_and_by_part(tie: Literal["none", "target", "all"]) -> None:
    net = Transformer(replace(MODEL, tie=tie), 24, 24)
    total, *rows = [line.split() for line in parameter_table(net).splitlines()]
    assert total == ["parameters", f"{sum(p.numel() for p in net.parameters()):,}"]
    sizes = {part: int(n.replace(",", "")) for part, n, *_ in rows}
    assert sum(sizes.values()) == sum(p.numel() for p in net.parameters())
    assert sizes["encoder"] == sum(p.numel() for p in net.encoder.parameters())
    assert sizes["src_embedding"] == 24 * 16
    assert (sizes["output"] > 0) == (tie == "none")
    shares = {part: rest[-1] for part, _, _, *rest in rows if rest}
    first = {"none": {}, "target": {"output": "tgt_embedding"}}
    assert shares == first.get(tie, {"tgt_embedding": "src_embedding", "output": "src_embedding"})
    assert sum(float(share.rstrip("%")) for _, _, share, *_ in rows) == pytest.approx(100, abs=0.5)


def test_an_epoch_of_many_batches_is_looked_at_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    make = Epoch.__getitem__
    monkeypatch.setattr(Epoch, "__getitem__", lambda self, i: made.append(i) or make(self, i))  # type: ignore[func-returns-value]
    lengths = np.random.default_rng(0).integers(1, 9, 3000).tolist()
    side = TokenArray.of([[4] * n for n in lengths], 8)
    many = Epoch(TokenPairs(side, side), tokens_per_batch=20, max_tokens=None, multiple=1, key=(1, 0))
    rehearse(Counting(monkeypatch), many, 1, list[str]().append)
    assert len(many) > 900
    assert len(made) < 500
    assert max(made) - min(made) > 0.9 * len(many)
