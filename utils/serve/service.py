"""Dispatch of requests to runs: the choice of a run, a queue for each, limits, counters, and a clean shutdown."""

import asyncio
import bisect
import errno
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from types import FrameType, TracebackType
from typing import NamedTuple, Self

import uvicorn
from fastapi import HTTPException
from starlette.types import ASGIApp

from const.token import EOS
from models.transformer import Transformer
from utils.search.inspection import mean_cross_attention
from utils.search.translator import Translation, Translator
from utils.serve.batcher import Batcher, QueueFullError
from utils.text.language import Detected, detect
from utils.text.tokenizer import id_of_each

# Metrics of a server, in the text format of Prometheus.

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128)


class Histogram:
    """Counts of values up to each bound.

    Args:
        bounds: ascending upper bounds, one bucket each; one more bucket is for larger values.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, label: str) -> Iterator[str]:
        """Yield the cumulative buckets, the sum and the count."""
        for bound, count in zip([*self._bounds, "+Inf"], accumulate(self._counts), strict=True):
            yield f'{name}_bucket{{{label},le="{bound}"}} {count}'
        yield f"{name}_sum{{{label}}} {self._sum:.6g}"
        yield f"{name}_count{{{label}}} {sum(self._counts)}"


class Metrics:
    """Metrics of one server; use it from a single thread.

    Args:
        runs: names of the served runs.
    """

    def __init__(self, runs: Sequence[str]) -> None:
        self._answers: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self._batches = {run: Histogram(_TEXTS) for run in runs}

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._answers[path, status] += 1
        self._seconds.setdefault(path, Histogram(_SECONDS)).add(seconds)

    def translated(self, run: str, n_texts: int) -> None:
        """Count a batch."""
        self._batches[run].add(n_texts)

    def page(self, waiting: Mapping[str, int]) -> str:
        """Return all metrics; `waiting` is the number of queued texts of each run."""
        return "".join(f"{line}\n" for line in self._lines(waiting))

    def _lines(self, waiting: Mapping[str, int]) -> Iterator[str]:
        yield from _head("miyako_requests_total", "counter", "Requests answered, by status; 499: the client has gone.")
        for (path, status), n in sorted(self._answers.items()):
            yield f'miyako_requests_total{{path="{path}",status="{status}"}} {n}'
        yield from _head(
            "miyako_request_seconds", "histogram", "Seconds from the head of a request to the end of its answer."
        )
        for path, seconds in sorted(self._seconds.items()):
            yield from seconds.lines("miyako_request_seconds", f'path="{path}"')
        yield from _head("miyako_batch_texts", "histogram", "Texts per batch.")
        for run, texts in self._batches.items():
            yield from texts.lines("miyako_batch_texts", f'run="{_escaped(run)}"')
        yield from _head("miyako_queue_texts", "gauge", "Texts waiting for a run.")
        for run, n in waiting.items():
            yield f'miyako_queue_texts{{run="{_escaped(run)}"}} {n}'


def _head(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


# A translator shared by many requests: each chunk of lines brings its own beam size.

_DIGITS = 3  # digits of a weight: less than a thousandth is invisible
_MOST_WEIGHTS = 500_000  # most weights returned for a chunk: some MB of JSON, for which all requests wait


class Asked(NamedTuple):
    """How to translate.

    Args:
        beam: beam size; None: the run's own, or `n_best` if that is larger.
        n_best: candidates to return.
        attention: whether to return attention weights.
    """

    beam: int | None = None
    n_best: int = 1
    attention: bool = False


class Line(NamedTuple):
    """A translated line.

    Args:
        translation: its candidates.
        source_tokens: source tokens with a final </s>; empty without attention.
        attention: for each candidate, the weights of each of its tokens over the source tokens; empty if not
            requested, if the line was not translated in one piece, or if the chunk has too many weights already.
    """

    translation: Translation
    source_tokens: list[str]
    attention: list[list[list[float]]]


class Interpreter:
    """Translates chunks of lines; use it from a single thread.

    Args:
        translator: the translator, whose beam size changes with each request.
        model: its model in single precision, not shared with the translator.
    """

    def __init__(self, translator: Translator, model: Transformer) -> None:
        self._translator = translator
        self._own = translator.search
        self._model = model
        tgt = translator.tokenizers.tgt
        self._tgt_ids = id_of_each(tgt)

    def translate(self, lines: Sequence[str], asked: Asked) -> list[Line]:
        """Translate lines, all with the same options."""
        beam = asked.beam or max(self._own.beam_size, asked.n_best)
        self._translator.search = replace(self._own, beam_size=beam)
        translations = self._translator.translate(lines, n_best=asked.n_best)
        if not asked.attention:
            return [Line(translation, [], []) for translation in translations]
        return self._with_attention(lines, translations)

    def _with_attention(self, lines: Sequence[str], translations: Sequence[Translation]) -> list[Line]:
        whole = [i for i, translation in enumerate(translations) if translation.n_pieces == 1]
        room, src = self._translator.window - 1, self._translator.tokenizers.src
        sources = {i: ids[:room] for i, ids in zip(whole, src.encode([lines[i] for i in whole]), strict=True)}
        sizes = accumulate(
            (len(sources[i]) + 1) * sum(len(candidate.tokens) for candidate in translations[i].candidates)
            for i in whole
        )
        whole = [i for i, size in zip(whole, sizes, strict=True) if size <= _MOST_WEIGHTS]
        pairs = [(i, candidate.tokens) for i in whole for candidate in translations[i].candidates]
        targets = [[self._tgt_ids[token] for token in tokens] for _, tokens in pairs]
        weights = mean_cross_attention([self._model], [sources[i] for i, _ in pairs], targets)
        attention: list[list[list[list[float]]]] = [[] for _ in lines]
        for (i, _), weight in zip(pairs, weights, strict=True):
            attention[i].append([[round(value, _DIGITS) for value in row] for row in weight.tolist()])
        return [
            Line(translation, [*src.tokens(sources[i]), EOS] if attention[i] else [], attention[i])
            for i, translation in enumerate(translations)
        ]


# The server process: listening, answering and shutting down cleanly.

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LAST_PORT = 65535
_LAST_S = 60  # time limit for pending answers on shutdown; a client that does not read gets no more


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address; requests that arrive before the server is ready wait.

    Args:
        host: name or address of this machine; 127.0.0.1 can be reached only from this machine.
        port: port to bind; 0: any free port.

    Raises:
        ValueError: the address cannot be bound.
    """
    if not 0 <= port <= _LAST_PORT:
        raise ValueError(f"port {port} does not exist: give --port 0 (any free port) to {_LAST_PORT}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with ExitStack() as until_bound:
            bound = until_bound.enter_context(socket.socket(family, kind, protocol))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # reuse a port that was closed a minute ago
            bound.bind(address)
            bound.listen()  # otherwise another process could bind the same address now
            until_bound.pop_all()
    except UnicodeError:  # raised for names that no host can have
        raise ValueError(f"{host!r} is not a host name: --host 127.0.0.1 is this machine") from None
    except OSError as error:
        remedy = "--host 127.0.0.1 is this machine"
        if error.errno == errno.EADDRINUSE:
            remedy = "another program uses it: give another port, or --port 0 for any free one"
        elif error.errno == errno.EACCES:
            remedy = "ports below 1024 are reserved for the system: give another, such as --port 8000"
        raise ValueError(f"cannot listen on {host}, port {port} ({error.strerror}): {remedy}") from None
    return bound


def address(bound: socket.socket) -> str:
    """Return the URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """Serves an application until it is told to stop.

    The first SIGINT or SIGTERM makes it finish pending requests and accept no new ones; a second one ends it at once.

    Args:
        app: the application.
        on_ready: called when the server is ready for requests.
    """

    def __init__(self, app: ASGIApp, on_ready: Callable[[], object] = lambda: None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                server_header=False,
                ws="none",
                timeout_graceful_shutdown=_LAST_S,
            )
        )
        self._on_ready = on_ready
        self._told: int | None = None

    def serve_until_told(self, bound: socket.socket) -> None:
        """Serve on a bound socket until SIGINT or SIGTERM.

        Raises:
            KeyboardInterrupt: SIGINT ended it.
        """
        self.run(sockets=[bound])
        if self._told == signal.SIGINT:
            raise KeyboardInterrupt

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then call `on_ready`."""
        await super().startup(sockets)
        self._on_ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Within the block, the server handles signals; unlike uvicorn, it does not raise them again afterwards."""
        if threading.current_thread() is not threading.main_thread():  # other threads receive no signals
            yield
            return
        before = {number: signal.signal(number, self._heed) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _heed(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 (the signature is Python's)
        if self._told is not None:
            os._exit(128 + number)  # any gentler exit would wait for threads that translate
        self._told = number
        self.should_exit = True


# Dispatch of requests to runs: the choice of a run, a queue for each, and limits.

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
