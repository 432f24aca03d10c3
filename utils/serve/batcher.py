"""Batching of texts that arrive within milliseconds of each other: one worker thread, and a bounded queue."""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Generic, Self, TypeVar

OptionsT = TypeVar("OptionsT", bound=Hashable)
FoundT = TypeVar("FoundT")


# About what a character takes, thrice; it decides how long a long request lets short ones pass.
_CHARACTER_S = 0.003
_SHORT = 50  # characters; shorter texts take about as long


@dataclass(eq=False)
class _Job(Generic[OptionsT, FoundT]):
    texts: Sequence[str]
    options: OptionsT
    found: asyncio.Future[list[FoundT]]  # done when nobody waits for it any more
    since: float  # arrival time, by the clock of the event loop
    results: list[FoundT] = field(default_factory=list)
    n_begun: int = 0  # texts that have been given to the worker

    @property
    def rest(self) -> Sequence[str]:
        return self.texts[self.n_begun :]

    @property
    def seconds(self) -> float:
        """About what the rest takes."""
        return _CHARACTER_S * sum(max(_SHORT, len(text)) for text in self.rest)


_Part = tuple[_Job[OptionsT, FoundT], Sequence[str]]  # a job, and those of its texts that are in a batch


class Batcher(Generic[OptionsT, FoundT]):
    """Collects texts from many requests; use it in an `async with` block, which finishes queued texts on exit.

    Args:
        work: processes texts with the same options, in a separate thread; returns a result for each, in order.
        batch_texts: most texts in a batch.
        batch_chars: most characters in a batch, which cannot be given up; a longer text has one for itself.
        collect_s: seconds that a text may wait for others while the worker is idle.
        queue_texts: most texts in the queue.
        on_batch: called with the number of texts in each batch.
        weight: how many times the usual a text takes with some options: a batch has fewer of these.
    """

    def __init__(
        self,
        work: Callable[[Sequence[str], OptionsT], Sequence[FoundT]],
        batch_texts: int,
        batch_chars: int,
        collect_s: float,
        queue_texts: int,
        on_batch: Callable[[int], object] = lambda _: None,
        weight: Callable[[OptionsT], int] = lambda _: 1,
    ) -> None:
        self._work, self._on_batch, self._weight = work, on_batch, weight
        self._batch_texts, self._batch_chars = batch_texts, batch_chars
        self._collect_s, self._queue_texts = collect_s, queue_texts
        self._jobs: list[_Job[OptionsT, FoundT]] = []
        self._changed = asyncio.Event()
        self._is_closing = False

    async def __aenter__(self) -> Self:
        self._thread = ThreadPoolExecutor(1)
        self._task = asyncio.create_task(self._work_through())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        self._changed.set()
        await self._task
        self._thread.shutdown()

    def n_waiting(self) -> int:
        """Number of texts in the queue."""
        return sum(len(job.rest) for job in self._waiting())

    def enter(self, texts: Sequence[str], options: OptionsT) -> asyncio.Future[list[FoundT]]:
        """Queue the texts of a request, or raise `QueueFull`; cancelling the future takes them out again."""
        if self._is_closing or self.n_waiting() + len(texts) > self._queue_texts:
            raise asyncio.QueueFull
        loop = asyncio.get_running_loop()
        job: _Job[OptionsT, FoundT] = _Job(texts, options, loop.create_future(), loop.time())
        if not texts:
            job.found.set_result([])
        self._jobs.append(job)
        self._changed.set()
        return job.found

    def _waiting(self) -> list[_Job[OptionsT, FoundT]]:
        self._jobs = [job for job in self._jobs if not job.found.done()]
        return [job for job in self._jobs if job.rest]

    async def _work_through(self) -> None:
        while batch := await self._next_batch():
            await self._translate(batch)

    async def _next_batch(self) -> list[_Part[OptionsT, FoundT]]:
        """Wait for texts with the same options; none once the batcher is closing and empty."""
        loop = asyncio.get_running_loop()
        while True:
            waiting = self._waiting()
            if not waiting and self._is_closing:
                return []
            patience = waiting[0].since + self._collect_s - loop.time() if waiting else None
            if patience is not None and (patience <= 0 or self._is_closing or self.n_waiting() >= self._batch_texts):
                return self._take(waiting)
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), patience)

    def _take(self, waiting: list[_Job[OptionsT, FoundT]]) -> list[_Part[OptionsT, FoundT]]:
        """Take a batch: a request passes earlier ones that are longer, until they have waited for as much longer."""

        def due(job: _Job[OptionsT, FoundT]) -> float:
            return job.since + job.seconds * self._weight(job.options)

        first, *others = sorted(waiting, key=due)
        room, chars = (most // self._weight(first.options) for most in (self._batch_texts, self._batch_chars))
        taken = []
        for job in (first, *others):
            n = min(room, bisect_right([*accumulate(map(len, job.rest))], chars))
            if job is first or (job.options == first.options and n == len(job.rest)):
                texts = job.rest[: max(1, n)]
                room, chars = room - len(texts), chars - sum(map(len, texts))
                job.n_begun += len(texts)
                taken.append((job, texts))
        return taken

    async def _translate(self, batch: Sequence[_Part[OptionsT, FoundT]]) -> None:
        texts, options = [text for _, part in batch for text in part], batch[0][0].options
        self._on_batch(len(texts))
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._thread, self._work, texts, options)
        except Exception as error:  # whatever it is, only the request that caused it gets it as its answer
            if len(batch) > 1:
                for one in batch:
                    if not one[0].found.done():  # nobody has given up by now
                        await self._translate([one])
            elif not batch[0][0].found.done():
                batch[0][0].found.set_exception(error)
            return
        each = iter(found)
        for job, part in batch:
            job.results += islice(each, len(part))
            if len(job.results) == len(job.texts) and not job.found.done():
                job.found.set_result(job.results)
