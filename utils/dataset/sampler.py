"""Base of what makes the epochs of batches of a text."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from utils.dataset.training_data import AnyEpoch

EpochT = TypeVar("EpochT", bound=AnyEpoch)


class Sampler(Generic[EpochT]):
    """Makes epochs of batches; the last one requested is remembered.

    Args:
        make: makes the epoch of a number, always an equal one.
    """

    def __init__(self, make: Callable[[int], EpochT]) -> None:
        self._make = make
        self._last: tuple[int, EpochT] | None = None

    def epoch(self, epoch: int) -> EpochT:
        """Return the batches of an epoch, from 0: the same at every call."""
        if self._last is None or self._last[0] != epoch:
            self._last = None  # frees it before the next one is made
            self._last = epoch, self._make(epoch)
        return self._last[1]

    def all(self) -> list[Any]:  # of the batches of such an epoch
        """Return the batches of the first epoch, for validation and testing."""
        epoch = self.epoch(0)
        return [epoch[i] for i in range(len(epoch))]
