"""What a training will take in memory and time, by a few discarded updates; and where its time goes, by a trace."""

import gzip
import os
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from utils.command import duration
from utils.dataset.batch import AnyBatch, AnyEpoch, filling, size
from utils.device import synchronize
from utils.file import atomic_file
from utils.training.device_memory import forget_peak, peak_memory, total_memory
from utils.training.report import Observer

# What a training will take in parameters, shapes, memory and time, measured by a few updates that are discarded.

LOOKED_AT = 200  # batches, to find the smallest and the median
TIMED = 3  # updates
MIB = 2**20


class Learner(Protocol):
    """The part of a Trainer that is needed here."""

    net: nn.Module
    device: torch.device

    def train_step(self, micro_batches: Iterable[AnyBatch]) -> object:
        """Make one update."""


def rehearse(
    trainer: Learner, epoch: AnyEpoch, accumulate: int, say: Callable[[str], None], n_processes: int = 1
) -> None:
    """Report what the training will take. This changes the weights; no file is written.

    Args:
        trainer: makes a few updates.
        epoch: a pass over the training text.
        accumulate: batches per update.
        say: called with the report.
        n_processes: number of processes that share the batches.
    """
    n_updates = -(-len(epoch) // accumulate)
    smallest, median = _smallest_and_median(epoch)
    largest = epoch[epoch.largest()]
    say(parameter_table(trainer.net))
    of = f" of {accumulate}" if accumulate > 1 else ""
    say(
        f"an epoch: {len(epoch):,} batches, {n_updates:,} updates{of}, padding {epoch.padding:.1%}\n"
        f"  smallest batch  {size(smallest)}\n"
        f"  median batch    {size(median)}\n"
        f"  largest batch   {size(largest)}"
    )
    forget_peak(trainer.device)
    own = accumulate // n_processes
    slowest = _seconds(trainer, [largest] * own, 1)
    usual = _seconds(trainer, [median] * own, TIMED)
    peak, total = (n / MIB for n in (peak_memory(trainer.device), total_memory(trainer.device)))
    say(
        f"an update: {usual:.3g} s at the median batch, {slowest:.3g} s at the largest\n"
        f"  memory          {peak:,.0f} MiB at most, of {total:,.0f} MiB\n"
        f"  an epoch takes  {duration(n_updates * usual)}, validations not included"
    )


def parameter_table(net: nn.Module) -> str:
    """Return a table of the parameters in each part of a network; shared ones count where they come first."""
    owner: dict[int, str] = {}
    size: Counter[str] = Counter()
    shared: dict[str, str] = {}
    for name, parameter in net.named_parameters(remove_duplicate=False):
        part = name.partition(".")[0]
        size[part] += 0 if id(parameter) in owner else parameter.numel()
        if (first := owner.setdefault(id(parameter), part)) != part:
            shared[part] = f"  shares with {first}"
    total = size.total()
    rows = [f"  {part:<16}{n:>14,}{n / total:8.1%}{shared.get(part, '')}" for part, n in size.items()]
    return "\n".join([f"{'parameters':<18}{total:>14,}", *rows])


def _smallest_and_median(epoch: AnyEpoch) -> tuple[AnyBatch, AnyBatch]:
    """Return the smallest and the median batch by positions, of a sample: all of a large epoch would take minutes."""
    places = range(0, len(epoch), -(-len(epoch) // LOOKED_AT))
    by_size = sorted(places, key=lambda i: filling(epoch[i])[1])
    return epoch[by_size[0]], epoch[by_size[len(by_size) // 2]]


def _seconds(trainer: Learner, micro_batches: list[AnyBatch], n: int) -> float:
    """Return the median time of n updates from these batches, after one that allocates buffers and compiles."""
    trainer.train_step(micro_batches)
    times = []
    for _ in range(n):
        synchronize(trainer.device)
        begin = time.perf_counter()
        trainer.train_step(micro_batches)
        synchronize(trainer.device)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


# Where the time of a training goes: some updates, recorded operation by operation.

RANGES = ("data", "forward", "backward", "optimizer")  # the names that the Trainer gives its parts for the profiler
SKIPPED, RECORDED = 3, 5  # updates; the first ones also allocate buffers and compile
LINES = 12

# Torch's profiler reads this once, at its first use; without it, it prints unwanted messages on standard error.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


class Tracer(Observer):
    """Records some of the first updates; afterwards the training continues unrecorded.

    Args:
        path: where to write the trace, in the format of Chrome and Perfetto, compressed.
        device: where the training runs.
        say: called with a summary of what takes most of the time.
    """

    def __init__(self, path: Path, device: torch.device, say: Callable[[str], None]) -> None:
        self._path = path
        self._device = device.type
        self._say = say
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
        course = schedule(wait=SKIPPED - 1, warmup=1, active=RECORDED)
        self._profile = profile(activities=activities, schedule=course, on_trace_ready=self._write)
        self._steps = 0
        self._profile.start()

    def on_update(self) -> None:
        """Count the update, and end the recording after the last that is to be recorded."""
        self._steps += 1
        if self._steps < SKIPPED + RECORDED:
            self._profile.step()
        elif self._steps == SKIPPED + RECORDED:
            self._profile.stop()

    def close(self) -> None:
        """Write what was recorded, if the training ended before the last update to be recorded."""
        if self._steps < SKIPPED + RECORDED:
            self._profile.stop()
        if self._steps <= SKIPPED:
            self._say(f"No trace: the training ended before update {SKIPPED + 1}, the first to be recorded")

    def _write(self, recorded: Any) -> None:  # torch's profile is untyped
        n_updates = self._steps - SKIPPED
        if n_updates < 1:
            return
        with TemporaryDirectory() as folder, atomic_file(self._path) as draft:
            plain = Path(folder) / "trace.json"
            recorded.export_chrome_trace(str(plain))
            with plain.open("rb") as source, gzip.open(draft, "wb") as packed:
                shutil.copyfileobj(source, packed)
        self._say(_summary(recorded.key_averages(), n_updates, self._device))
        self._say(f"Trace: {self._path}; open it at https://ui.perfetto.dev or, in Chrome, at chrome://tracing")


def _summary(averages: Any, n_updates: int, device: str) -> str:
    """Return the time of each part of an update, and the operations that take most of its time themselves.

    Args:
        averages: the profiler's sums by operation.
        n_updates: number of updates recorded.
        device: the device whose time counts.
    """
    measure = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    parts = {event.key: event.cpu_time_total / 1e3 / n_updates for event in averages if event.key in RANGES}
    operations = [event for event in averages if not event.is_user_annotation]
    total = sum(getattr(event, measure) for event in operations) or 1.0
    operations.sort(key=lambda event: -getattr(event, measure))
    rows = [
        f"  {getattr(event, measure) / 1e3 / n_updates:9.2f} {getattr(event, measure) / total:6.1%} "
        f"{event.count / n_updates:7.0f}  {event.key[:60]}"
        for event in operations[:LINES]
    ]
    of_parts = "  ".join(f"{name} {parts[name]:.1f}" for name in RANGES if name in parts)
    head = f"  {'ms':>9} {'share':>6} {'calls':>7}  operation, by its own time on the {device} in each update"
    return "\n".join([f"\n{n_updates} updates recorded, ms each: {of_parts}", head, *rows])
