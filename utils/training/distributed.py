"""Several processes that train one network together, as `torchrun` starts them: each takes some of the batches."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_PATIENCE = timedelta(days=2)  # the others wait while the first one prepares a corpus or validates


class Processes:
    """This process among those that train together; a process alone is the first of one.

    Args:
        rank: from 0; the first one alone validates, prints and writes.
        size: number of processes.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    @property
    def is_first(self) -> bool:
        """Whether this one speaks for all."""
        return self.rank == 0

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the processes: one exchange for all of them."""
        if self.size == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        torch._foreach_copy_(list(tensors), [p.view_as(t) for p, t in zip(parts, tensors, strict=True)])

    def any(self, flag: bool) -> bool:
        """Whether one of them says so; all must ask at the same place."""
        if self.size == 1:
            return flag
        flags = torch.tensor(int(flag))
        dist.all_reduce(flags, dist.ReduceOp.MAX)
        return bool(flags)

    def from_first(self, value: Any) -> Any:
        """What the first one has; all must ask at the same place, and then wait for it."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
        return values[0]

    def to_first(self, places: Mapping[int, Any]) -> dict[int, Any]:
        """What all processes have, at the first; nothing new at the others. All must ask at the same place."""
        if self.size == 1:
            return {}
        gathered: list[Any] | None = [None] * self.size if self.is_first else None
        dist.gather_object(dict(places), gathered)
        return {place: value for part in gathered or () for place, value in part.items()}

    @contextmanager
    def first_alone(self) -> Iterator[None]:
        """The first one goes through the block, and when it is done the others do."""
        if not self.is_first:
            self.from_first(None)
        yield
        if self.is_first:
            self.from_first(None)


def own_device(device: torch.device) -> torch.device:
    """Of the GPUs that `torchrun` shares out, the one of this process."""
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    return device


@contextmanager
def joined_processes(device: torch.device) -> Iterator[Processes]:
    """Join the processes that `torchrun` has started, by gloo on CPUs and nccl on GPUs; alone where it has not."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Processes()
        return
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=_PATIENCE)
    try:
        yield Processes(dist.get_rank(), size)
    finally:
        dist.destroy_process_group()
