"""Remembering the last of some large things that are made one after another."""

from collections.abc import Callable
from typing import Generic, TypeVar

MadeT = TypeVar("MadeT")


class LastMade(Generic[MadeT]):
    """Makes a thing for a number; asked for the same number again, it gives the same thing.

    Args:
        make: gives the thing of a number, always an equal one.
    """

    def __init__(self, make: Callable[[int], MadeT]) -> None:
        self._make = make
        self._last: tuple[int, MadeT] | None = None

    def __call__(self, number: int) -> MadeT:
        """The thing of this number."""
        if self._last is None or self._last[0] != number:
            self._last = None  # frees it before the next one is made
            self._last = number, self._make(number)
        return self._last[1]
