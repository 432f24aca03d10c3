"""Batching of texts that arrive within milliseconds of each other: one worker thread, and a bounded queue."""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import Generic, NamedTuple, Self, TypeVar

OptionsT = TypeVar("OptionsT", bound=Hashable)
FoundT = TypeVar("FoundT")


class _Job(NamedTuple, Generic[OptionsT, FoundT]):
    texts: Sequence[str]
    options: OptionsT
    found: asyncio.Future[list[FoundT]]  # done when nobody waits for it any more
    since: float  # arrival time, by the clock of the event loop


class Batcher(Generic[OptionsT, FoundT]):
    """Collects texts from many requests; use it in an `async with` block, which finishes queued texts on exit.

    Args:
        work: processes texts with the same options, in a separate thread; returns a result for each, in order.
        batch_texts: most texts in a batch.
        collect_s: seconds that a text may wait for others while the worker is idle.
        queue_texts: most texts in the queue.
        on_batch: called with the number of texts in each batch.
    """

    def __init__(
        self,
        work: Callable[[Sequence[str], OptionsT], Sequence[FoundT]],
        batch_texts: int,
        collect_s: float,
        queue_texts: int,
        on_batch: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._work, self._on_batch = work, on_batch
        self._batch_texts, self._collect_s, self._queue_texts = batch_texts, collect_s, queue_texts
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
        return sum(len(job.texts) for job in self._waiting())

    def enter(self, texts: Sequence[str], options: OptionsT) -> asyncio.Future[list[FoundT]]:
        """Queue the texts of a request, or raise `QueueFull`; cancelling the future takes them out again."""
        if self._is_closing or self.n_waiting() + len(texts) > self._queue_texts:
            raise asyncio.QueueFull
        loop = asyncio.get_running_loop()
        job = _Job[OptionsT, FoundT](texts, options, loop.create_future(), loop.time())
        self._jobs.append(job)
        self._changed.set()
        return job.found

    def _waiting(self) -> list[_Job[OptionsT, FoundT]]:
        self._jobs = [job for job in self._jobs if not job.found.done()]
        return self._jobs

    async def _work_through(self) -> None:
        while jobs := await self._next_batch():
            await self._translate(jobs)

    async def _next_batch(self) -> list[_Job[OptionsT, FoundT]]:
        """Wait for jobs with the same options as the oldest; none once the batcher is closing and empty."""
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

    def _take(self, waiting: list[_Job[OptionsT, FoundT]]) -> list[_Job[OptionsT, FoundT]]:
        taken: list[_Job[OptionsT, FoundT]] = []
        self._jobs = []
        room = self._batch_texts
        for job in waiting:
            if job.options == waiting[0].options and (not taken or len(job.texts) <= room):
                room -= len(job.texts)
                taken.append(job)
            else:
                self._jobs.append(job)
        return taken

    async def _translate(self, jobs: Sequence[_Job[OptionsT, FoundT]]) -> None:
        texts = [text for job in jobs for text in job.texts]
        found: list[FoundT] = []
        try:
            for begin in range(0, len(texts), self._batch_texts):  # a request may exceed a batch
                if all(job.found.done() for job in jobs):
                    return
                part = texts[begin : begin + self._batch_texts]
                self._on_batch(len(part))
                loop = asyncio.get_running_loop()
                found += await loop.run_in_executor(self._thread, self._work, part, jobs[0].options)
        except Exception as error:  # whatever it is, only the request that caused it gets it as its answer
            if len(jobs) > 1:
                for job in jobs:
                    await self._translate([job])
            elif not jobs[0].found.done():
                jobs[0].found.set_exception(error)
            return
        each = iter(found)
        for job in jobs:
            own = list(islice(each, len(job.texts)))
            if not job.found.done():
                job.found.set_result(own)
