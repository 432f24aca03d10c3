"""Dispatch of requests to runs: the choice of a run, a queue for each, and limits."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, fields
from types import TracebackType
from typing import NamedTuple, Self

from fastapi import HTTPException

from utils.serve.batcher import Batcher, QueueFullError
from utils.serve.interpreter import Asked, Line
from utils.serve.language import Detected, detect
from utils.serve.metrics import Metrics

AUTO = "auto"  # in place of a language code: any language
MOST_BEAM = 16
_BYTES_PER_CHARACTER = 12  # JSON may write one as two escapes, \ud83d\ude00
_SPARE_BYTES = 16384  # for everything in a request besides text
_RETRY_AFTER = {"Retry-After": "1"}


@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Args:
        max_chars: most characters in a request.
        max_texts: most texts in a request; each line of a text counts as one.
        batch_texts: most texts translated together.
        collect_ms: milliseconds that a text may wait for others to share its batch.
        queue_texts: most texts waiting for a run.
        timeout_s: seconds until a request times out.

    Raises:
        ValueError: a limit would let nothing through.
    """

    max_chars: int = 5000
    max_texts: int = 100
    batch_texts: int = 64
    collect_ms: float = 5.0
    queue_texts: int = 512
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (value > 0 or (value == 0 and field.name == "collect_ms")):  # nor NaN
                raise ValueError(f"{field.name}={value} lets nothing through: give more than 0")
        if self.queue_texts < self.max_texts:
            raise ValueError(
                f"queue_texts={self.queue_texts} has no room for the max_texts={self.max_texts} of one request: "
                "raise the first, or lower the second"
            )

    @property
    def max_bytes(self) -> int:
        """Most bytes in the body of a request."""
        return _SPARE_BYTES + _BYTES_PER_CHARACTER * self.max_chars


class Route(NamedTuple):
    """A run that is served.

    Args:
        name: name by which users choose it.
        src_lang: source language.
        tgt_lang: target language.
        beam: beam size of its own search settings.
        translate: translates a chunk of lines; called in a separate thread.
    """

    name: str
    src_lang: str
    tgt_lang: str
    beam: int
    translate: Callable[[Sequence[str], Asked], list[Line]]

    @property
    def direction(self) -> str:
        """Translation direction, for display."""
        return f"{self.src_lang}→{self.tgt_lang}"


class Service:
    """Runs that translate requests; use it in an `async with` block.

    Args:
        routes: the runs; of several with the same direction, the first is used unless another is named.
        limits: limits of requests and queues.

    Raises:
        ValueError: two runs have the same name.
    """

    def __init__(self, routes: Sequence[Route], limits: Limits) -> None:
        names = [route.name for route in routes]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two runs are called {name}, but runs are chosen by name: rename one")
        self.routes = routes
        self.limits = limits
        self.metrics = Metrics(names)
        self._batchers = {route.name: self._batcher(route) for route in routes}
        self._entered = AsyncExitStack()

    def _batcher(self, route: Route) -> Batcher[Asked, Line]:
        def count(n_texts: int) -> None:
            self.metrics.translated(route.name, n_texts)

        limits = self.limits
        return Batcher(route.translate, limits.batch_texts, limits.collect_ms / 1000, limits.queue_texts, count)

    async def __aenter__(self) -> Self:
        for batcher in self._batchers.values():
            await self._entered.enter_async_context(batcher)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._entered.aclose()

    @property
    def waiting(self) -> dict[str, int]:
        """Number of texts in the queue of each run."""
        return {name: batcher.n_waiting for name, batcher in self._batchers.items()}

    def choose(
        self, text: str, source: str = AUTO, target: str = AUTO, name: str | None = None
    ) -> tuple[Route, Detected | None]:
        """Choose the run for a text; also return the detected language if it had to be detected.

        Raises:
            HTTPException: no run fits (400).
        """
        directions = ", ".join(dict.fromkeys(route.direction for route in self.routes))
        if name is not None and all(route.name != name for route in self.routes):
            names = ", ".join(route.name for route in self.routes)
            raise HTTPException(400, f"no run {name!r} is served: choose from {names}")
        fitting = [
            route
            for route in self.routes
            if name in (None, route.name) and source in (AUTO, route.src_lang) and target in (AUTO, route.tgt_lang)
        ]
        if not fitting:
            asked = f"run {name}" if name else "run"
            raise HTTPException(400, f"no {asked} translates {source}→{target}: choose from {directions}")
        if source != AUTO or name is not None:
            return fitting[0], None
        detected = detect(text, list(dict.fromkeys(route.src_lang for route in fitting)))
        if detected is None:
            raise HTTPException(
                400, f"the language of the text cannot be translated {AUTO}→{target}: choose from {directions}"
            )
        return next(route for route in fitting if route.src_lang == detected.language), detected

    async def translate(self, wanted: Sequence[tuple[Route, str]], asked: Asked) -> list[list[Line]]:
        """Translate the texts of one request, line by line; all or nothing.

        Raises:
            HTTPException: too many texts are waiting (503).
        """
        chunks = [(route, _lines(text)) for route, text in wanted]
        answers: list[asyncio.Future[list[Line]]] = []
        try:
            for route, lines in chunks:
                answers.append(self._batchers[route.name].enter(lines, asked))
            return await asyncio.gather(*answers)
        except QueueFullError:
            raise HTTPException(503, "too many texts are waiting: try again in a moment", _RETRY_AFTER) from None
        finally:
            for answer in answers:
                answer.cancel()  # takes abandoned texts out of the queue

    def refuse_too_much(self, texts: Sequence[str]) -> None:
        """Refuse texts over the limits; call this before doing anything else with a request.

        Raises:
            HTTPException: there are too many lines or characters (400).
        """
        lines = [line for text in texts for line in _lines(text)]
        n_texts, n_chars = len(lines), sum(map(len, lines))
        for n, most, unit in (
            (n_texts, self.limits.max_texts, "lines"),
            (n_chars, self.limits.max_chars, "characters"),
        ):
            if n > most:
                raise HTTPException(400, f"{n:,} {unit} exceed the limit of {most:,}: send them in parts")


def _lines(text: str) -> list[str]:
    return text.replace("\r\n", "\n").split("\n")
