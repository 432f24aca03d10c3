"""What a Trainer must know of the data that it learns from, whatever these are."""

from collections.abc import Mapping
from typing import Protocol, Self

import torch
from jaxtyping import Int
from torch import Tensor

from const.token import PAD_ID


class AnyBatch(Protocol):
    """Some tensors that are learned from together."""

    @property
    def sides(self) -> Mapping[str, Int[Tensor, "B L"]]:
        """The ids that the network reads or predicts, padded, by what they are called."""

    def to(self, device: torch.device) -> Self:
        """The same on a device; from pinned memory without waiting."""


def filling(batch: AnyBatch) -> tuple[int, int]:
    """Positions that hold tokens, and all positions; to be asked before the batch goes to a device."""
    sides = batch.sides.values()
    return sum(int((ids != PAD_ID).sum()) for ids in sides), sum(ids.numel() for ids in sides)


def size(batch: AnyBatch) -> str:
    """Rows times columns, for people."""
    return " and ".join(f"{ids.size(0):,} x {ids.size(1):,} {name}" for name, ids in batch.sides.items())


class AnyEpoch(Protocol):
    """The batches of an epoch, in training order; each is made when it is asked for."""

    n_dropped: int  # examples left out for their length
    padding: float  # share of all positions

    def __len__(self) -> int:
        """Number of batches."""

    def __getitem__(self, i: int) -> AnyBatch: ...

    def target_tokens(self, i: int) -> int:
        """How many tokens batch i predicts."""

    def largest(self) -> int:
        """The batch with most positions: what the memory must hold."""


class Sampler(Protocol):
    """Cuts a text into epochs of batches."""

    def epoch(self, epoch: int) -> AnyEpoch:
        """An epoch's batches: the same whoever asks, and however often."""


class BatchSettings(Protocol):
    """How a text becomes batches."""

    @property
    def accumulate(self) -> int:
        """Batches whose gradients are added before an update."""

    def remedy(self) -> str:
        """What to change where the memory does not hold a batch."""
