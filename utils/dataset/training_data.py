"""What a Trainer needs from its data, whatever the task."""

from collections.abc import Mapping
from typing import Protocol, Self

import torch
from jaxtyping import Int
from torch import Tensor

from const.token import PAD_ID


class AnyBatch(Protocol):
    """A batch of tensors to learn from."""

    @property
    def sides(self) -> Mapping[str, Int[Tensor, "B L"]]:
        """The ids that the network reads or predicts, padded, by name."""

    def to(self, device: torch.device) -> Self:
        """Copy to a device; from pinned memory without waiting."""


def filling(batch: AnyBatch) -> tuple[int, int]:
    """Count positions that hold tokens, and all positions; call it before the batch goes to a device."""
    sides = batch.sides.values()
    return sum(int((ids != PAD_ID).sum()) for ids in sides), sum(ids.numel() for ids in sides)


def size(batch: AnyBatch) -> str:
    """Describe the size of a batch, rows x columns, for people."""
    return " and ".join(f"{ids.size(0):,} x {ids.size(1):,} {name}" for name, ids in batch.sides.items())


class AnyEpoch(Protocol):
    """The batches of an epoch, in training order; each is made on demand."""

    n_dropped: int  # examples left out for their length
    padding: float  # share of all positions

    def __len__(self) -> int:
        """Number of batches."""

    def __getitem__(self, i: int) -> AnyBatch: ...

    def target_tokens(self, i: int) -> int:
        """Return the number of tokens that batch i predicts."""

    def largest(self) -> int:
        """Return the batch with the most positions, which memory must be able to hold."""


class BatchSettings(Protocol):
    """How a text becomes batches."""

    @property
    def accumulate(self) -> int:
        """Batches whose gradients are added before an update."""

    def remedy(self) -> str:
        """Return what to change where a batch does not fit in memory."""
