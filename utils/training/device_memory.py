"""How much memory a training takes, and which option to lower when it does not fit."""

import os
import re
import resource
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from utils.dataset.batch import AnyBatch, BatchSettings, filling, size
from utils.device import is_out_of_memory

_PEAK = re.compile(r"VmHWM:\s+(\d+) kB")


@contextmanager
def explained_out_of_memory(micro_batches: Sequence[AnyBatch], config: BatchSettings) -> Iterator[None]:
    """Within the block, running out of memory raises an error that names the batch and the option to lower.

    Args:
        micro_batches: the batches of the update that the block makes; a process among several may have none.
        config: the settings that they were made with.

    Raises:
        ValueError: when no memory was left.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not (micro_batches and is_out_of_memory(error)):
            raise
        largest = max(micro_batches, key=lambda batch: filling(batch)[1])
        raise ValueError(f"out of memory at a batch of {size(largest)}: {config.remedy()}") from error


def forget_peak(device: torch.device) -> None:
    """Reset what `peak_memory` measures, where the system can."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
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


def total_memory(device: torch.device) -> int:
    """Return the memory of the device in bytes."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
