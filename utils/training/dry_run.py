"""What a training takes in memory and time: estimated by a few discarded updates, kept within bounds, and traced."""

import os
import re
import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from utils.command import Log, duration, is_out_of_memory
from utils.dataset.batch import AnyBatch, BatchSettings, Epoch, filling, size
from utils.device import synchronize
from utils.memory import return_freed_memory
from utils.training.report import Observer

SAMPLED = 200  # batches, to find the smallest and the median
TIMED = 3  # updates
MIB = 2**20
_PEAK = re.compile(r"VmHWM:\s+(\d+) kB")


def dry_run(
    net: nn.Module,
    train_step: Callable[[list[AnyBatch]], object],
    epoch: Epoch,
    accumulate: int,
    log: Log,
    n_processes: int = 1,
) -> None:
    """Report what the training will take, with `accumulate` batches an update, which `n_processes` share.

    This changes the weights; no file is written.
    """
    device, n_updates = next(net.parameters()).device, -(-len(epoch) // accumulate)
    own = max(1, min(accumulate, len(epoch)) // n_processes)  # batches of an update
    # of a sample: all of a large epoch would take minutes
    by_size = sorted(range(0, len(epoch), -(-len(epoch) // SAMPLED)), key=lambda i: filling(epoch[i])[1])
    smallest, median, largest = (epoch[i] for i in (by_size[0], by_size[len(by_size) // 2], epoch.largest()))
    log(parameter_table(net))
    of = f" of {accumulate}" if accumulate > 1 else ""
    log(
        f"an epoch: {len(epoch):,} batches, {n_updates:,} updates{of}, padding {epoch.padding:.1%}\n"
        f"  smallest batch  {size(smallest)}\n"
        f"  median batch    {size(median)}\n"
        f"  largest batch   {size(largest)}"
    )
    forget_peak(device)

    def seconds(batch: AnyBatch, n: int) -> float:
        """Return the median time of n updates, after one that allocates buffers and compiles; on CUDA one records."""
        for _ in range(2 if device.type == "cuda" else 1):
            train_step([batch] * own)
        times = []
        for _ in range(n):
            synchronize(device)
            begin = time.perf_counter()
            train_step([batch] * own)
            synchronize(device)
            times.append(time.perf_counter() - begin)
        return statistics.median(times)

    slowest, usual = seconds(largest, 1), seconds(median, TIMED)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
    log(
        f"an update: {usual:.3g} s at the median batch, {slowest:.3g} s at the largest\n"
        f"  memory          {peak_memory(device) / MIB:,.0f} MiB at most, of {total / MIB:,.0f} MiB\n"
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


@contextmanager
def explained_out_of_memory(micro_batches: Sequence[AnyBatch], config: BatchSettings) -> Iterator[None]:
    """Within the block, which makes an update, running out of memory is an error that names batch and remedy."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not (micro_batches and is_out_of_memory(error)):  # a process among several may have no batch
            raise
        largest = max(micro_batches, key=lambda batch: filling(batch)[1])
        raise ValueError(f"out of memory at a batch of {size(largest)}: {config.remedy()}") from error


def forget_peak(device: torch.device) -> None:
    """Reset what `peak_memory` measures, where the system can."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):  # Linux only
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes since `forget_peak`: of tensors on a GPU, of the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError, TypeError):  # Linux only; there, getrusage's peak includes the parent process's
        return 1024 * int(_PEAK.search(Path("/proc/self/status").read_text())[1])  # type: ignore[index]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


class FreedMemory(Observer):
    """Returns freed memory to the system after each validation, and after so many seconds without one.

    It takes a fifth of a second, and without it a training of hours holds all memory there is.
    """

    def __init__(self, seconds: float = 60.0) -> None:
        self._seconds, self._returned = seconds, time.monotonic()

    def on_update(self) -> None:
        """Return it where it is time."""
        if time.monotonic() - self._returned >= self._seconds:
            self.on_validation()

    def on_validation(self, *_: object) -> None:
        """Return it."""
        return_freed_memory()
        self._returned = time.monotonic()


RANGES = ("data", "forward", "backward", "optimizer")  # the names that the Trainer gives its parts for the profiler
SKIPPED, RECORDED = 3, 5  # updates; the first ones also allocate buffers and compile
ROWS = 20  # that show what takes most of the time, the parts of an update among them

# Torch's profiler reads this once, at its first use; without it, it prints unwanted messages on standard error.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


class Tracer(Observer):
    """Records some of the first updates; afterwards the training continues unrecorded.

    The trace, in the format of Chrome and Perfetto, is compressed; `log` is told what takes most of the time.
    """

    def __init__(self, path: Path, device: torch.device, log: Log) -> None:
        self._path, self._device, self._log = path, device.type, log
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
        course = schedule(wait=SKIPPED - 1, warmup=1, active=RECORDED, repeat=1)
        self._profile = profile(activities=activities, schedule=course, on_trace_ready=self._write)
        self._steps = 0
        self._profile.start()

    def on_update(self) -> None:
        """Count the update; the trace is written after the last that is to be recorded."""
        self._steps += 1
        self._profile.step()

    def close(self) -> None:
        """Write what was recorded, if the training ended before the last update to be recorded."""
        self._profile.stop()
        if self._steps <= SKIPPED:
            self._log(f"No trace: the training ended before update {SKIPPED + 1}, the first to be recorded")

    def _write(self, recorded: Any) -> None:  # torch's profile is untyped
        if self._steps <= SKIPPED:
            return
        draft = self._path.with_name(f".{self._path.name}")  # torch compresses by the end of the name
        recorded.export_chrome_trace(str(draft))
        draft.replace(self._path)
        order = f"{self._device}_time_total"
        self._log(recorded.key_averages().table(order, row_limit=ROWS, max_name_column_width=40))
        self._log(f"Trace: {self._path}; open it at https://ui.perfetto.dev or, in Chrome, at chrome://tracing")
