"""How requests are batched: texts that arrive within milliseconds, a bounded queue, and turns between two steps.

A batch is worked on in steps, those of its search. Of the batches that wait for their turn, the next step is that of
the batch that has had least, so that short texts pass long ones; and what nobody waits for any more is given up.
"""

import asyncio
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Any, Generic, Self, TypeVar

from config.search import Limits

OptionsT = TypeVar("OptionsT", bound=Hashable)
ResultT = TypeVar("ResultT")
Step = Callable[[], object]  # called between two steps of a search

# About what a character takes, thrice; it decides how long a long request lets short ones of its client pass.
_CHARACTER_S = 0.003
_SHORT = 50  # characters; shorter texts take about as long
_QUICK = 500  # characters of a request that does not wait for those with more
_MAX_QUICK, _MAX_LONG = 4, 3  # batches at a time; of long texts, one of each client
_YOUNG_S = 0.5  # quick requests wait so long for those before them, and then share a batch
_SHARE = 1 / 2  # of the time since it began that a batch has at least, whatever of its kind passes it
_LONG_COST = 3  # times what a step of a quick batch does
_REMEMBERED = 20_000  # characters by which the speed is measured, in batches of at least _QUICK


class GivenUp(Exception):  # noqa: N818 (it is no error)
    """Nobody waits for what a batch would become."""


class Turns:
    """Lets a few batches at a time take steps: quick ones three quarters of them, as long as there are both kinds.

    Args:
        n_at_once: batches.
    """

    def __init__(self, n_at_once: int = 1) -> None:
        self._changed = threading.Condition()
        self._waiting: list[_Batch[Any, Any]] = []
        self._working: list[_Batch[Any, Any]] = []
        self._n_at_once = n_at_once
        self._had = {True: 0.0, False: 0.0}  # seconds of quick batches, and of long ones by what they cost

    def take(self, batch: "_Batch[Any, Any]") -> None:
        """Wait until it is this batch's turn."""
        with self._changed:
            if all(other.is_quick is not batch.is_quick for other in (*self._waiting, *self._working)):
                self._had[batch.is_quick] = max(self._had.values())  # no claim to what others have had before
            self._wait(batch)

    def step(self, batch: "_Batch[Any, Any]") -> None:
        """Go on, unless another has a turn before this batch: then wait until it is this one's again."""
        with self._changed:
            self._stop(batch)
            self._wait(batch)

    def leave(self, batch: "_Batch[Any, Any]") -> None:
        """Let another batch work."""
        with self._changed:
            self._stop(batch)
            self._begin_next()

    def _wait(self, batch: "_Batch[Any, Any]") -> None:
        self._waiting.append(batch)
        self._begin_next(own=batch)
        self._changed.wait_for(lambda: batch in self._working)
        batch.step_began = time.monotonic()

    def _stop(self, batch: "_Batch[Any, Any]") -> None:
        seconds = time.monotonic() - batch.step_began
        batch.seconds += seconds
        self._had[batch.is_quick] += seconds * (1 if batch.is_quick else _LONG_COST)
        self._working.remove(batch)

    def _begin_next(self, own: "_Batch[Any, Any] | None" = None) -> None:
        """Choose who works: once for all, for to each that waits, another might seem to be the next."""
        while self._waiting and len(self._working) < self._n_at_once:
            is_quick = min({batch.is_quick for batch in self._waiting}, key=self._had.__getitem__)
            batch = min((batch for batch in self._waiting if batch.is_quick is is_quick), key=_Batch.turn)
            self._waiting.remove(batch)
            self._working.append(batch)
            if batch is not own:  # whose thread is awake
                self._changed.notify_all()


@dataclass(eq=False)
class _Job(Generic[OptionsT, ResultT]):
    texts: Sequence[str]
    options: OptionsT
    client: str
    weight: int  # how many times the usual a text takes with these options
    answer: asyncio.Future[list[ResultT]]  # done when nobody waits for it any more
    arrival: float  # by the clock of the event loop, in seconds
    results: list[ResultT] = field(default_factory=list)
    n_begun: int = 0  # texts that have been given to a worker

    @property
    def rest(self) -> Sequence[str]:
        return self.texts[self.n_begun :]

    @property
    def size(self) -> int:
        """How many characters of usual texts take as long as those without a result."""
        return _size(self.texts[len(self.results) :]) * self.weight

    @property
    def is_quick(self) -> bool:
        return _size(self.texts) * self.weight <= _QUICK


def _size(texts: Iterable[str]) -> int:
    return sum(max(_SHORT, len(text)) for text in texts)


@dataclass(eq=False)
class _Batch(Generic[OptionsT, ResultT]):
    parts: list[tuple[_Job[OptionsT, ResultT], Sequence[str]]]  # jobs, and those of their texts that are in it
    begin: float = field(default_factory=time.monotonic)
    step_began: float = 0.0
    seconds: float = 0.0  # that its steps have taken

    @property
    def is_quick(self) -> bool:
        return self.parts[0][0].is_quick

    def turn(self) -> float:
        """Of its kind, the batch with the lowest number takes the next step."""
        return self.seconds + _SHARE * self.begin


class Batcher(Generic[OptionsT, ResultT]):
    """Collects texts from many requests; use it in an `async with` block, which finishes queued texts on exit.

    Args:
        work: processes texts with the same options, in a separate thread, and calls what it is given between two
            steps; returns a result for each text, in order.
        limits: of a batch, and of the queue.
        on_batch: called with the number of texts in each batch.
        weight: how many times the usual a text takes with some options: a batch has fewer of these.
        turns: those of all batchers that share a processor.
    """

    def __init__(
        self,
        work: Callable[[Sequence[str], OptionsT, Step], Sequence[ResultT]],
        limits: Limits,
        on_batch: Callable[[int], object] = lambda _: None,
        weight: Callable[[OptionsT], int] = lambda _: 1,
        turns: Turns | None = None,
    ) -> None:
        self._work, self._limits, self._on_batch, self._weight = work, limits, on_batch, weight
        self._turns = turns or Turns()
        self._jobs: list[_Job[OptionsT, ResultT]] = []
        self._batches: dict[_Batch[OptionsT, ResultT], asyncio.Task[None]] = {}
        self._served = defaultdict[str, int](int)  # characters that each client has had in batches, while it has jobs
        self._timed, self._timed_s = 0.0, 0.0  # characters of the last batches, and what they have taken
        self._changed = asyncio.Event()
        self._is_closing = False

    async def __aenter__(self) -> Self:
        self._threads = ThreadPoolExecutor(_MAX_QUICK + _MAX_LONG)
        self._task = asyncio.create_task(self._begin_batches())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        self._changed.set()
        await asyncio.wait([self._task])
        self._threads.shutdown()

    @property
    def is_alive(self) -> bool:
        """Whether texts in the queue will be worked on."""
        return not self._task.done()

    def n_waiting(self) -> int:
        """Number of texts in the queue."""
        return sum(len(job.rest) for job in self._present())

    def seconds(self, texts: Iterable[str], options: OptionsT) -> float:
        """About what texts take alone, by what others have taken so far."""
        return _size(texts) * self._weight(options) * self._timed_s / max(1.0, self._timed)

    def seconds_until(self, texts: Sequence[str], options: OptionsT, client: str = "") -> float:
        """About when texts would be done if they were queued now, by the share that each client has."""
        sizes = defaultdict[tuple[str, bool], int](int)
        job = self._job(texts, options, client)
        for other in (*self._present(), job):
            sizes[other.client, other.is_quick] += other.size
        own = sizes[client, job.is_quick]
        return sum(min(size, own) for size in sizes.values()) * self._timed_s / max(1.0, self._timed)

    def enter(self, texts: Sequence[str], options: OptionsT, client: str = "") -> asyncio.Future[list[ResultT]]:
        """Queue the texts of a request, or raise `QueueFull`; cancelling the future takes them out again."""
        if self._is_closing or self.n_waiting() + len(texts) > self._limits.queue_texts:
            raise asyncio.QueueFull
        job = self._job(texts, options, client)
        if not texts:
            job.answer.set_result([])
        self._jobs.append(job)
        self._changed.set()
        return job.answer

    def _job(self, texts: Sequence[str], options: OptionsT, client: str) -> _Job[OptionsT, ResultT]:
        loop = asyncio.get_running_loop()
        return _Job(texts, options, client, self._weight(options), loop.create_future(), loop.time())

    def _present(self) -> list[_Job[OptionsT, ResultT]]:
        self._jobs = [job for job in self._jobs if not job.answer.done()]
        return self._jobs

    async def _begin_batches(self) -> None:
        while jobs := await self._next_jobs():
            batch = self._take(jobs)
            self._batches[batch] = asyncio.create_task(self._translate(batch))
        await asyncio.gather(*self._batches.values())

    async def _next_jobs(self) -> list[_Job[OptionsT, ResultT]]:
        """Wait for jobs that a batch can begin with; none once the batcher is closing and has none."""
        loop, limits = asyncio.get_running_loop(), self._limits
        while True:
            jobs = self._startable()
            if not jobs and self._is_closing and not any(job.rest for job in self._present()):
                return []
            patience = jobs[0].arrival + limits.collect_ms / 1000 - loop.time() if jobs else None
            n_texts = sum(len(job.rest) for job in jobs)
            if patience is not None and (patience <= 0 or self._is_closing or n_texts >= limits.batch_texts):
                return jobs
            # a batch that has grown old is no event, but then others may begin
            if any(batch.is_quick for batch in self._batches):
                patience = min(_YOUNG_S / 4, patience or _YOUNG_S)
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), patience)

    def _startable(self) -> list[_Job[OptionsT, ResultT]]:
        """Return the jobs that a batch may begin with now, in the order of their arrival."""
        quick = [batch for batch in self._batches if batch.is_quick]
        clients = {job.client for batch in self._batches if not batch.is_quick for job, _ in batch.parts}
        may_quick = len(quick) < _MAX_QUICK and all(batch.seconds > _YOUNG_S for batch in quick)
        may_long = len(self._batches) - len(quick) < _MAX_LONG
        busy = {job for batch in self._batches for job, _ in batch.parts}  # their results come in order
        return [
            job
            for job in self._present()
            if job.rest and job not in busy
            if (may_quick if job.is_quick else may_long and job.client not in clients)
        ]

    def _take(self, jobs: Sequence[_Job[OptionsT, ResultT]]) -> _Batch[OptionsT, ResultT]:
        """Take a batch: quick jobs first, then those of the client that has had least, of which the shortest."""
        present = {job.client for job in self._present()}
        for client in [*self._served.keys() - present]:
            del self._served[client]
        least = min((self._served[client] for client in present if client in self._served), default=0)
        for client in present - self._served.keys():  # one who comes later has no claim to what others have had
            self._served[client] = least

        def due(job: _Job[OptionsT, ResultT]) -> tuple[bool, int, float]:
            return not job.is_quick, self._served[job.client], job.arrival + _CHARACTER_S * job.size

        first, *others = sorted(jobs, key=due)
        room, chars = self._limits.batch_texts // first.weight, self._limits.batch_chars // first.weight
        parts = []
        for job in (first, *others):
            n = min(room, bisect_right([*accumulate(map(len, job.rest))], chars))
            is_alike = (job.options, job.is_quick) == (first.options, first.is_quick)
            if job is first or (is_alike and n == len(job.rest)):
                texts = job.rest[: max(1, n)]
                room, chars = room - len(texts), chars - sum(map(len, texts))
                job.n_begun += len(texts)
                self._served[job.client] += _size(texts)
                parts.append((job, texts))
        return _Batch(parts)

    async def _translate(self, batch: _Batch[OptionsT, ResultT]) -> None:
        self._on_batch(sum(len(texts) for _, texts in batch.parts))
        try:
            await self._work_on(batch, batch.parts)
        finally:
            del self._batches[batch]
            self._changed.set()

    async def _work_on(
        self,
        batch: _Batch[OptionsT, ResultT],
        parts: Sequence[tuple[_Job[OptionsT, ResultT], Sequence[str]]],
    ) -> None:
        texts, options = [text for _, part in parts for text in part], parts[0][0].options
        turns, jobs, before = self._turns, [job for job, _ in parts], batch.seconds

        def check() -> None:
            if all(job.answer.done() for job in jobs):
                raise GivenUp

        def step() -> None:
            turns.step(batch)
            check()

        def work() -> Sequence[ResultT]:
            turns.take(batch)
            try:
                check()
                return self._work(texts, options, step)
            finally:
                turns.leave(batch)

        try:
            worked = await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except GivenUp:
            return
        except Exception as error:  # whatever it is, only the request that caused it gets it as its answer
            for job, part in parts:
                if job.answer.done():  # it has been given up
                    continue
                if len(parts) > 1:
                    await self._work_on(batch, [(job, part)])
                else:
                    job.answer.set_exception(error)
            return
        if (size := _size(texts) * jobs[0].weight) >= _QUICK:  # smaller ones are slower by the character
            kept = _REMEMBERED / (_REMEMBERED + size)
            self._timed = self._timed * kept + size
            self._timed_s = self._timed_s * kept + batch.seconds - before
        results = iter(worked)
        for job, part in parts:
            job.results += islice(results, len(part))
            if len(job.results) == len(job.texts) and not job.answer.done():
                job.answer.set_result(job.results)
