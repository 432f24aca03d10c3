import asyncio
import threading
from collections.abc import Sequence

import pytest

from utils.serve.batcher import Batcher, QueueFullError


class Copyist:
    """Converts texts to capitals, when allowed to."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], str]] = []
        self.threads: set[int] = set()
        self.may_work = threading.Event()
        self.may_work.set()
        self.has_begun = threading.Event()

    def write(self, texts: Sequence[str], asked: str) -> list[str]:
        self.calls.append((list(texts), asked))
        self.threads.add(threading.get_ident())
        self.has_begun.set()
        assert self.may_work.wait(20)
        if "ink" in texts:
            raise RuntimeError("no ink")
        return [text.upper() for text in texts]

    def batcher(self, batch_texts: int = 8, collect_s: float = 0.02, queue_texts: int = 100) -> Batcher[str, str]:
        return Batcher(self.write, batch_texts, collect_s, queue_texts)

    async def begun(self) -> None:
        while not self.has_begun.is_set():
            await asyncio.sleep(0.001)


@pytest.fixture
def copyist() -> Copyist:
    return Copyist()


def test_what_comes_together_is_done_together_in_one_other_thread(copyist: Copyist) -> None:
    async def ask() -> list[list[str]]:
        async with copyist.batcher() as batcher:
            return [*await asyncio.gather(batcher.enter(["a", "b"], "x"), batcher.enter(["c"], "x"))]

    assert asyncio.run(ask()) == [["A", "B"], ["C"]]
    assert copyist.calls == [(["a", "b", "c"], "x")]
    assert len(copyist.threads) == 1
    assert threading.get_ident() not in copyist.threads


def test_what_comes_a_little_later_is_waited_for(copyist: Copyist) -> None:
    async def ask() -> None:
        async with copyist.batcher(collect_s=0.5) as batcher:
            early = batcher.enter(["a"], "x")
            await asyncio.sleep(0.02)
            await asyncio.gather(early, batcher.enter(["b"], "x"))

    asyncio.run(ask())
    assert copyist.calls == [(["a", "b"], "x")]


def test_a_full_batch_waits_for_nobody(copyist: Copyist) -> None:
    async def ask() -> list[list[str]]:
        async with copyist.batcher(batch_texts=2, collect_s=60) as batcher:
            both = asyncio.gather(batcher.enter(["a"], "x"), batcher.enter(["b"], "x"))
            return [*await asyncio.wait_for(both, 20)]

    assert asyncio.run(ask()) == [["A"], ["B"]]


def test_a_batch_has_so_many_texts_and_a_large_request_several(copyist: Copyist) -> None:
    async def ask() -> list[list[str]]:
        async with copyist.batcher(batch_texts=3) as batcher:
            chunks = [["a", "b"], ["c", "d"], ["e"], ["f", "g", "h", "i"]]
            return await asyncio.gather(*(batcher.enter(chunk, "x") for chunk in chunks))

    assert asyncio.run(ask()) == [["A", "B"], ["C", "D"], ["E"], ["F", "G", "H", "I"]]
    assert [texts for texts, _ in copyist.calls] == [["a", "b", "e"], ["c", "d"], ["f", "g", "h"], ["i"]]


def test_what_is_asked_otherwise_is_done_apart_the_oldest_first(copyist: Copyist) -> None:
    async def ask() -> list[list[str]]:
        async with copyist.batcher() as batcher:
            chunks = [("a", "x"), ("b", "y"), ("c", "x"), ("d", "y")]
            return await asyncio.gather(*(batcher.enter([text], asked) for text, asked in chunks))

    assert asyncio.run(ask()) == [["A"], ["B"], ["C"], ["D"]]
    assert copyist.calls == [(["a", "c"], "x"), (["b", "d"], "y")]


def test_a_failure_is_the_answer_to_who_caused_it_alone(copyist: Copyist) -> None:
    async def ask() -> list[str]:
        async with copyist.batcher() as batcher:
            first, spoilt, last = (batcher.enter([text], "x") for text in ("a", "ink", "b"))
            with pytest.raises(RuntimeError, match="no ink"):
                await spoilt
            return [*await first, *await last, *await batcher.enter(["c"], "x")]

    assert asyncio.run(ask()) == ["A", "B", "C"]
    assert [texts for texts, _ in copyist.calls] == [["a", "ink", "b"], ["a"], ["ink"], ["b"], ["c"]]


def test_what_nobody_waits_for_any_more_is_given_up_between_its_parts(copyist: Copyist) -> None:
    async def ask() -> list[str]:
        async with copyist.batcher(batch_texts=2) as batcher:
            copyist.may_work.clear()
            long = batcher.enter(["a", "b", "c", "d", "e"], "x")
            await copyist.begun()
            long.cancel()
            copyist.may_work.set()
            return await batcher.enter(["f"], "x")

    assert asyncio.run(ask()) == ["F"]
    assert [texts for texts, _ in copyist.calls] == [["a", "b"], ["f"]]


def test_the_queue_has_an_end_and_those_who_leave_make_room(copyist: Copyist) -> None:
    async def ask() -> None:
        async with copyist.batcher(batch_texts=1, queue_texts=3) as batcher:
            copyist.may_work.clear()
            first = batcher.enter(["in work"], "x")
            await copyist.begun()
            assert batcher.n_waiting == 0
            waiting = [batcher.enter(["a", "b"], "x"), batcher.enter(["c"], "x")]
            assert batcher.n_waiting == 3
            with pytest.raises(QueueFullError):
                batcher.enter(["d"], "x")
            waiting[0].cancel()
            assert batcher.n_waiting == 1
            waiting.append(batcher.enter(["e", "f"], "x"))
            with pytest.raises(QueueFullError):
                batcher.enter(["g"], "x")
            copyist.may_work.set()
            assert await asyncio.gather(first, *waiting[1:]) == [["IN WORK"], ["C"], ["E", "F"]]

    asyncio.run(ask())
    assert [texts for texts, _ in copyist.calls] == [["in work"], ["c"], ["e"], ["f"]]


def test_who_leaves_during_the_work_does_no_harm(copyist: Copyist) -> None:
    async def ask() -> list[str]:
        async with copyist.batcher() as batcher:
            copyist.may_work.clear()
            left, stays = batcher.enter(["a"], "x"), batcher.enter(["b", "c"], "x")
            await copyist.begun()
            left.cancel()
            copyist.may_work.set()
            return await stays

    assert asyncio.run(ask()) == ["B", "C"]


def test_the_end_finishes_what_is_there_and_takes_nothing_new(copyist: Copyist) -> None:
    async def ask() -> list[list[str]]:
        batcher = copyist.batcher(collect_s=60)
        await batcher.__aenter__()
        copyist.may_work.clear()
        answers = [batcher.enter(["a"], "x"), batcher.enter(["b"], "y")]
        ending = asyncio.ensure_future(batcher.__aexit__(None, None, None))
        await copyist.begun()
        with pytest.raises(QueueFullError):
            batcher.enter(["c"], "x")
        copyist.may_work.set()
        await asyncio.wait_for(ending, 20)
        return [answer.result() for answer in answers]

    assert asyncio.run(ask()) == [["A"], ["B"]]


def test_sizes_are_told(copyist: Copyist) -> None:
    sizes: list[int] = []

    async def ask() -> None:
        async with Batcher(copyist.write, 3, 0.01, 100, sizes.append) as batcher:
            await asyncio.gather(*(batcher.enter([text], "x") for text in "abcd"))

    asyncio.run(ask())
    assert sizes == [3, 1]
