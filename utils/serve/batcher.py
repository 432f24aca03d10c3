"""What arrives within a few milliseconds is worked on together, by one thread; a queue with an end."""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from types import TracebackType
from typing import Generic, NamedTuple, Self, TypeVar

AskedT = TypeVar("AskedT", bound=Hashable)
FoundT = TypeVar("FoundT")


class QueueFullError(Exception):
    """No more is taken at present."""


class _Job(NamedTuple, Generic[AskedT, FoundT]):
    texts: Sequence[str]
    asked: AskedT
    found: asyncio.Future[list[FoundT]]
    since: float  # when it came, by the clock of the event loop

    @property
    def is_wanted(self) -> bool:
        """Nobody has turned away from it."""
        return not self.found.done()


class Batcher(Generic[AskedT, FoundT]):
    """Collects texts from many requests; to be entered (`async with`) before it is asked.

    Leaving it finishes what is there.

    Args:
        work: what is done with texts that are asked for alike, in a thread of its own; an answer for each, in order.
        batch_texts: most texts worked on together, unless a single request has more.
        collect_s: how long a text may wait for others while nothing is being done.
        queue_texts: most texts that wait.
        on_batch: is told how many texts are worked on together.
    """

    def __init__(
        self,
        work: Callable[[Sequence[str], AskedT], Sequence[FoundT]],
        batch_texts: int,
        collect_s: float,
        queue_texts: int,
        on_batch: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._work = work
        self._batch_texts = batch_texts
        self._collect_s = collect_s
        self._queue_texts = queue_texts
        self._on_batch = on_batch
        self._waiting: list[_Job[AskedT, FoundT]] = []
        self._changed = asyncio.Event()
        self._is_closing = False

    async def __aenter__(self) -> Self:
        self._thread = ThreadPoolExecutor(1)
        self._task = asyncio.create_task(self._work_through())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closing = True
        self._changed.set()
        await self._task
        self._thread.shutdown()

    @property
    def n_waiting(self) -> int:
        """Texts in the queue."""
        return sum(len(job.texts) for job in self._wanted())

    def enter(self, texts: Sequence[str], asked: AskedT) -> asyncio.Future[list[FoundT]]:
        """Queue the texts of a request; who cancels the future takes them out again.

        Raises:
            QueueFullError: too many wait already.
        """
        loop = asyncio.get_running_loop()
        if self._is_closing or self.n_waiting + len(texts) > self._queue_texts:
            raise QueueFullError
        job = _Job(texts, asked, loop.create_future(), loop.time())
        self._waiting.append(job)
        self._changed.set()
        return job.found

    def _wanted(self) -> list[_Job[AskedT, FoundT]]:
        self._waiting = [job for job in self._waiting if job.is_wanted]
        return self._waiting

    async def _work_through(self) -> None:
        while jobs := await self._next_batch():
            await self._do(jobs)

    async def _next_batch(self) -> list[_Job[AskedT, FoundT]]:
        """Jobs that are asked for as the oldest is; none when all is done and no more will come."""
        loop = asyncio.get_running_loop()
        while True:
            waiting = self._wanted()
            if not waiting and self._is_closing:
                return []
            patience = waiting[0].since + self._collect_s - loop.time() if waiting else None
            if patience is not None and (patience <= 0 or self._is_closing or self.n_waiting >= self._batch_texts):
                return self._take(waiting)
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), patience)

    def _take(self, waiting: list[_Job[AskedT, FoundT]]) -> list[_Job[AskedT, FoundT]]:
        taken: list[_Job[AskedT, FoundT]] = []
        left: list[_Job[AskedT, FoundT]] = []
        room = self._batch_texts
        for job in waiting:
            if job.asked == waiting[0].asked and (not taken or len(job.texts) <= room):
                room -= len(job.texts)
                taken.append(job)
            else:
                left.append(job)
        self._waiting = left
        return taken

    async def _do(self, jobs: Sequence[_Job[AskedT, FoundT]]) -> None:
        texts = [text for job in jobs for text in job.texts]
        loop = asyncio.get_running_loop()
        done: list[FoundT] = []
        try:
            for begin in range(0, len(texts), self._batch_texts):  # of a request that is longer than a batch
                if not any(job.is_wanted for job in jobs):
                    return
                part = texts[begin : begin + self._batch_texts]
                self._on_batch(len(part))
                done += await loop.run_in_executor(self._thread, self._work, part, jobs[0].asked)
        except Exception as error:  # whatever it is, it is the answer to whose text has caused it, and to nobody else
            if len(jobs) > 1:
                for job in jobs:
                    await self._do([job])
            elif jobs[0].is_wanted:
                jobs[0].found.set_exception(error)
            return
        found = iter(done)
        for job in jobs:
            own = list(islice(found, len(job.texts)))
            if job.is_wanted:
                job.found.set_result(own)
