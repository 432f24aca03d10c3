"""What a training will take, found out by a few updates that are thrown away: parameters, shapes, memory, time."""

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
from utils.training.memory import forget_peak, peak_memory, total_memory

LOOKED_AT = 200  # batches, to find the smallest and the median
TIMED = 3  # updates
MIB = 2**20


class Learner(Protocol):
    """A Trainer, as far as it is needed here."""

    net: nn.Module
    device: torch.device

    def train_step(self, micro_batches: Iterable[AnyBatch]) -> object:
        """One update."""


def rehearse(
    trainer: Learner, epoch: AnyEpoch, accumulate: int, say: Callable[[str], None], n_processes: int = 1
) -> None:
    """Say what the training will take. Weights move meanwhile; nothing is written.

    Args:
        trainer: makes a few updates.
        epoch: a pass over the training text.
        accumulate: batches an update.
        say: is told.
        n_processes: that share them.
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
        f"  an epoch takes  {duration(n_updates * usual)}, validations not counted"
    )


def parameter_table(net: nn.Module) -> str:
    """How many parameters there are in which part of a network; shared ones where they stand first."""
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
    """By positions, of some batches: making all of a large epoch would take minutes."""
    places = range(0, len(epoch), -(-len(epoch) // LOOKED_AT))
    by_size = sorted(places, key=lambda i: filling(epoch[i])[1])
    return epoch[by_size[0]], epoch[by_size[len(by_size) // 2]]


def _seconds(trainer: Learner, micro_batches: list[AnyBatch], n: int) -> float:
    """Of an update from these batches, the median of n after one that makes room for buffers, and compiles."""
    trainer.train_step(micro_batches)
    times = []
    for _ in range(n):
        synchronize(trainer.device)
        begin = time.perf_counter()
        trainer.train_step(micro_batches)
        synchronize(trainer.device)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)
