"""What a training will take in parameters, shapes, memory and time, measured by a few updates that are discarded."""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import nn

from utils.dataset.training_data import AnyBatch, AnyEpoch, filling, size
from utils.device import synchronize
from utils.duration import duration
from utils.training.device_memory import forget_peak, peak_memory, total_memory

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
