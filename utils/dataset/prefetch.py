"""Preparation of the next batches in a separate thread during an update."""

import queue
import threading
from collections.abc import Generator, Iterable
from typing import Any, TypeVar

from torch import Tensor

X = TypeVar("X")

_AHEAD = 4


class _End:
    """The mark that the producer is done, or failed."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def prefetched(items: Iterable[X], pin: bool = False) -> Generator[X, None, None]:
    """Yield the same items in the same order, some of them made ahead.

    The thread ends when the items do, when making one fails (taking the next one then raises the exception), and when
    the iterator is closed or discarded half-way.

    Args:
        items: iterated over in the thread.
        pin: put tensors (also in tuples and lists) into pinned memory, from which a GPU copies by itself.
    """
    ready: queue.Queue[X | _End] = queue.Queue(_AHEAD)
    abandoned = threading.Event()

    def make() -> None:
        error = None
        try:
            for item in items:
                ready.put(_pinned(item) if pin else item)
                if abandoned.is_set():
                    return
        except BaseException as caught:  # raised again where the items are taken
            error = caught
        ready.put(_End(error))

    thread = threading.Thread(target=make, name="prefetch", daemon=True)
    thread.start()
    try:
        while not isinstance(item := ready.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        abandoned.set()
        while thread.is_alive():  # it may be waiting for room in the queue
            _drain(ready)
            thread.join(0.01)


def _drain(items: queue.Queue[Any]) -> None:
    while not items.empty():
        items.get_nowait()


def _pinned(item: Any) -> Any:
    match item:
        case Tensor():
            return item.pin_memory()
        case list():
            return [_pinned(part) for part in item]
        case tuple():
            parts = map(_pinned, item)
            return type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
    return item
