import gc
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from utils.dataset.batch import Batch, padded, prefetched


def threads() -> int:
    return sum(thread.name == "prefetch" for thread in threading.enumerate())


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether something comes true within a minute."""
    end = time.monotonic() + 60
    while not holds() and time.monotonic() < end:
        time.sleep(0.001)
    return holds()


class Counting:
    """Counts up, and how far it was asked to."""

    def __init__(self, end: int) -> None:
        self.made, self.end = 0, end

    def __iter__(self) -> Iterator[int]:
        while self.made < self.end:
            self.made += 1
            yield self.made - 1


@given(st.lists(st.integers(), max_size=30))
def test_the_items_stay_what_they_are_and_as_they_come(items: list[int]) -> None:
    assert list(prefetched(items)) == items
    assert threads() == 0


def test_items_are_made_in_another_thread_ahead_but_not_far() -> None:
    makers = []
    counting = Counting(100)

    def made() -> Iterator[int]:
        for i in counting:
            makers.append(threading.current_thread())
            yield i

    taken = prefetched(made())
    assert next(taken) == 0
    assert eventually(lambda: counting.made >= 4)
    time.sleep(0.05)
    assert counting.made <= 8
    assert threading.current_thread() not in makers
    taken.close()


@pytest.mark.parametrize("taken", [1, 3])
def test_what_is_abandoned_half_way_leaves_no_thread(taken: int) -> None:
    counting = Counting(10**9)
    items = prefetched(counting)
    for _ in range(taken):
        next(items)
    del items
    gc.collect()
    assert threads() == 0
    made = counting.made
    time.sleep(0.02)
    assert counting.made == made < 20


def test_a_failure_comes_after_the_items_before_it() -> None:
    def failing() -> Iterator[int]:
        yield 1
        yield 2
        raise OSError("the disk is gone")

    items = prefetched(failing())
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(OSError, match="the disk is gone") as caught:
        next(items)
    assert "failing" in {entry.name for entry in caught.traceback}
    assert threads() == 0


@pytest.mark.gpu
@pytest.mark.parametrize("pin", [True, False])
def test_pinned_batches_are_the_same_in_memory_that_a_gpu_can_fetch(pin: bool) -> None:
    batch = Batch(padded([[5, 6]]), padded([[7]], bos=True))
    ((update, number),) = prefetched([[[batch, batch], 3]], pin)
    assert number == 3
    assert isinstance(update, list)
    for got in update:
        assert isinstance(got, Batch)
        assert [side.is_pinned() for side in got] == [pin, pin]
        assert all(ours.equal(theirs) for ours, theirs in zip(got, batch, strict=True))
        assert torch.equal(got.to(torch.device("cuda")).src.cpu(), batch.src)
