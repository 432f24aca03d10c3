"""How requests are batched: texts that arrive within milliseconds, a bounded queue, and one worker thread."""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Generic, Self, TypeVar

from config.search import Limits

OptionsT = TypeVar("OptionsT", bound=Hashable)
ResultT = TypeVar("ResultT")

# About what a character takes, thrice; it decides how long a long request lets short ones pass.
_CHARACTER_S = 0.003
_SHORT = 50  # characters; shorter texts take about as long


@dataclass(eq=False)
class _Job(Generic[OptionsT, ResultT]):
    texts: Sequence[str]
    options: OptionsT
    answer: asyncio.Future[list[ResultT]]  # done when nobody waits for it any more
    arrival: float  # by the clock of the event loop, in seconds
    results: list[ResultT] = field(default_factory=list)
    n_begun: int = 0  # texts that have been given to the worker

    @property
    def rest(self) -> Sequence[str]:
        return self.texts[self.n_begun :]

    @property
    def seconds(self) -> float:
        """About what the rest takes."""
        return _CHARACTER_S * sum(max(_SHORT, len(text)) for text in self.rest)


_Part = tuple[_Job[OptionsT, ResultT], Sequence[str]]  # a job, and those of its texts that are in a batch


class Batcher(Generic[OptionsT, ResultT]):
    """Collects texts from many requests; use it in an `async with` block, which finishes queued texts on exit.

    Args:
        work: processes texts with the same options, in a separate thread; returns a result for each, in order.
        limits: of a batch, which cannot be given up, and of the queue.
        on_batch: called with the number of texts in each batch.
        weight: how many times the usual a text takes with some options: a batch has fewer of these.
    """

    def __init__(
        self,
        work: Callable[[Sequence[str], OptionsT], Sequence[ResultT]],
        limits: Limits,
        on_batch: Callable[[int], object] = lambda _: None,
        weight: Callable[[OptionsT], int] = lambda _: 1,
    ) -> None:
        self._work, self._limits, self._on_batch, self._weight = work, limits, on_batch, weight
        self._jobs: list[_Job[OptionsT, ResultT]] = []
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

    def enter(self, texts: Sequence[str], options: OptionsT) -> asyncio.Future[list[ResultT]]:
        """Queue the texts of a request, or raise `QueueFull`; cancelling the future takes them out again."""
        if self._is_closing or self.n_waiting() + len(texts) > self._limits.queue_texts:
            raise asyncio.QueueFull
        loop = asyncio.get_running_loop()
        job: _Job[OptionsT, ResultT] = _Job(texts, options, loop.create_future(), loop.time())
        if not texts:
            job.answer.set_result([])
        self._jobs.append(job)
        self._changed.set()
        return job.answer

    def _waiting(self) -> list[_Job[OptionsT, ResultT]]:
        self._jobs = [job for job in self._jobs if not job.answer.done()]
        return [job for job in self._jobs if job.rest]

    async def _work_through(self) -> None:
        while batch := await self._next_batch():
            await self._translate(batch)

    async def _next_batch(self) -> list[_Part[OptionsT, ResultT]]:
        """Wait for texts with the same options; none once the batcher is closing and empty."""
        loop, limits = asyncio.get_running_loop(), self._limits
        while True:
            waiting = self._waiting()
            if not waiting and self._is_closing:
                return []
            patience = waiting[0].arrival + limits.collect_ms / 1000 - loop.time() if waiting else None
            if patience is not None and (patience <= 0 or self._is_closing or self.n_waiting() >= limits.batch_texts):
                return self._take(waiting)
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), patience)

    def _take(self, waiting: list[_Job[OptionsT, ResultT]]) -> list[_Part[OptionsT, ResultT]]:
        """Take a batch: a request passes earlier ones that are longer, until they have waited for as much longer."""

        def due(job: _Job[OptionsT, ResultT]) -> float:
            return job.arrival + job.seconds * self._weight(job.options)

        first, *others = sorted(waiting, key=due)
        weight = self._weight(first.options)
        room, chars = self._limits.batch_texts // weight, self._limits.batch_chars // weight
        batch = []
        for job in (first, *others):
            n = min(room, bisect_right([*accumulate(map(len, job.rest))], chars))
            if job is first or (job.options == first.options and n == len(job.rest)):
                texts = job.rest[: max(1, n)]
                room, chars = room - len(texts), chars - sum(map(len, texts))
                job.n_begun += len(texts)
                batch.append((job, texts))
        return batch

    async def _translate(self, batch: Sequence[_Part[OptionsT, ResultT]]) -> None:
        texts, options = [text for _, part in batch for text in part], batch[0][0].options
        self._on_batch(len(texts))
        try:
            worked = await asyncio.get_running_loop().run_in_executor(self._thread, self._work, texts, options)
        except Exception as error:  # whatever it is, only the request that caused it gets it as its answer
            for job, part in batch:
                if job.answer.done():  # it has been given up
                    continue
                if len(batch) > 1:
                    await self._translate([(job, part)])
                else:
                    job.answer.set_exception(error)
            return
        results = iter(worked)
        for job, part in batch:
            job.results += islice(results, len(part))
            if len(job.results) == len(job.texts) and not job.answer.done():
                job.answer.set_result(job.results)
