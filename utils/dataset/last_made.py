"""A cache for the last of several large objects that are made one after another."""

from collections.abc import Callable
from typing import Generic, TypeVar

MadeT = TypeVar("MadeT")


class LastMade(Generic[MadeT]):
    """Makes an object for a number; the same number again returns the same object.

    Args:
        make: makes the object of a number, always an equal one.
    """

    def __init__(self, make: Callable[[int], MadeT]) -> None:
        self._make = make
        self._last: tuple[int, MadeT] | None = None

    def __call__(self, number: int) -> MadeT:
        """Return the object of this number."""
        if self._last is None or self._last[0] != number:
            self._last = None  # frees it before the next one is made
            self._last = number, self._make(number)
        return self._last[1]
