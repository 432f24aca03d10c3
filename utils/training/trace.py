"""Where the time of a training goes: some updates, recorded operation by operation."""

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from utils.file import atomic_file
from utils.training.observer import Observer

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
