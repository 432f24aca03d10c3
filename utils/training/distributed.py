"""Processes that train one network together, each some of the batches; and the signals that ask them to stop."""

import io
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_PATIENCE = timedelta(days=2)  # the other processes wait while the first one prepares a corpus or validates
_SILENCE = timedelta(minutes=10)  # on GPUs, after which a process that does not add its gradients is taken for dead


class Processes:
    """This process among those that train together; a single process has rank 0 of 1.

    All processes must call each of its methods at the same point, and wait there for one another.
    """

    def __init__(self, rank: int = 0, size: int = 1, adding: Any = None) -> None:
        self.rank = rank
        self.size = size
        self._adding = adding  # the group of processes that adds tensors of a GPU

    @property
    def is_first(self) -> bool:
        """Whether this is the process that validates, prints and writes."""
        return self.rank == 0

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the processes: one exchange for all of them."""
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat, group=self._adding)
        parts = flat.split([tensor.numel() for tensor in tensors])
        torch._foreach_copy_(list(tensors), [p.view_as(t) for p, t in zip(parts, tensors, strict=True)])

    def highest(self, *values: float) -> list[float]:
        """Return the highest value of each over all processes; of a flag, whether it is set in any of them."""
        if self.size == 1:
            return list(values)
        highest = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(highest, dist.ReduceOp.MAX)
        return highest.tolist()

    def broadcast(self, value: Any) -> Any:
        """Return the value of the first process."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
        return values[0]

    def gather(self, places: Mapping[int, Any], device: torch.device) -> dict[int, Any]:
        """Return the entries of all processes at the first, their tensors on its device; none at the rest."""
        if self.size == 1:
            return {}
        own = io.BytesIO()
        torch.save({place: tuple(value) for place, value in places.items()}, own)
        gathered: list[Any] | None = [None] * self.size if self.is_first else None
        dist.gather_object(own.getvalue(), gathered)
        parts = (torch.load(io.BytesIO(part), map_location=device, weights_only=True) for part in gathered or ())
        return {place: value for part in parts for place, value in part.items()}

    @contextmanager
    def first_alone(self) -> Iterator[None]:
        """Let the first process run the block, and the rest once it has finished."""
        if not self.is_first:
            self.broadcast(None)
        yield
        if self.is_first:
            self.broadcast(None)


def own_device(device: torch.device) -> torch.device:
    """Return the GPU that `torchrun` assigns to this process; any other device unchanged."""
    if device.type == "cuda":
        place, n_gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if place >= n_gpus:
            remedy = f"give torchrun --nproc-per-node {n_gpus}"
            raise ValueError(f"process {place} of this machine (from 0) has no GPU of its own, of {n_gpus}: {remedy}")
        device = torch.device("cuda", place)
        torch.cuda.set_device(device)
    return device


@contextmanager
def joined_processes(device: torch.device) -> Iterator[Processes]:
    """Join the processes that `torchrun` has started (gloo on CPUs, nccl on GPUs); without it, this one is alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Processes()
        return
    dist.init_process_group("gloo", timeout=_PATIENCE)
    adding = dist.new_group(backend="nccl", timeout=_SILENCE) if device.type == "cuda" else None
    yield Processes(dist.get_rank(), size, adding)
    dist.destroy_process_group()  # not after an error: it might wait for the others, whom the end of this one ends


class Interrupt:
    """Whether a stop was requested."""

    asked = False


@contextmanager
def graceful_interrupt() -> Iterator[Interrupt]:
    """Within the block, the first SIGINT or SIGTERM only sets `asked`; the second acts as usual."""
    interrupt = Interrupt()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(_number: int, _frame: FrameType | None) -> None:
        interrupt.asked = True
        restore()

    for number in before:
        signal.signal(number, note)
    try:
        yield interrupt
    finally:
        restore()
