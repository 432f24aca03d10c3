"""Dispatch of requests to runs: the choice of a run, a queue for each, limits, counters, and a clean shutdown."""

import asyncio
import errno
import os
import resource
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any, ClassVar, NamedTuple

import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from config.data import primary_language
from config.search import Limits
from const.token import EOS
from models.decoder_only import DecoderOnlyTranslator
from models.encoder_decoder import EncoderDecoder
from utils.search.forced import mean_cross_attention
from utils.search.inspection import Inspector
from utils.search.translator import Translation, Translator
from utils.serve.batcher import Batcher
from utils.text.language import Detected, detect
from utils.text.markup import SpanLinks

AUTO = "auto"  # in place of a language code: any language
MOST_BEAM = 16
_USUAL_BEAM = 4
_WEIGHT_DIGITS = 3  # less than a thousandth is invisible
_MOST_WEIGHTS = 500_000  # most weights returned for a chunk: some MB of JSON, for which all requests wait
_LAST_PORT = 65535
_HEAD_S = 10.0  # time limit for the head of a request, of some hundred bytes
_ANSWER_S = 60.0  # time limit for reading an answer, of at most some megabytes
_MOST_CONNECTIONS, _BACKLOG = 1000, 100
_SPARE_FILES = 500  # of which most are for connections that are accepted and not yet counted, some backlogs full
_LAST_S = 60  # time limit for pending answers on shutdown; a client that does not read gets no more


class Options(NamedTuple):
    """How to translate. Without a beam, it is the run's own, or `n_best` if that is larger."""

    beam: int | None = None
    n_best: int = 1
    attention: bool = False
    links: bool = False
    tag: str | None = None  # the kind of the texts; "": none; None: the run's own

    def weight(self) -> int:
        """How many times a usual search takes to search like this."""
        return max(1, max(self.beam or 1, self.n_best) // _USUAL_BEAM)


class Line(NamedTuple):
    """A translated line, with the weights of the tokens of each candidate of each piece over those of its source.

    There are none if they are not requested, or if the chunk has too many; and no links if they are not requested.
    """

    translation: Translation
    source_tokens: list[list[str]]  # of each piece, with a final </s>
    attention: list[list[list[list[float]]]]
    links: SpanLinks = ()  # between the line and its best translation


def translate_lines(
    translator: Translator, model: EncoderDecoder, lines: Sequence[str], options: Options
) -> list[Line]:
    """Translate lines, all with the same options.

    Args:
        translator: of the run, with its own settings.
        model: its model in single precision, not shared with the translator.
    """
    search, tokenizers = translator.search, translator.tokenizers
    search = replace(search, beam_size=options.beam or max(search.beam_size, options.n_best))
    tokenizers = tokenizers if options.tag is None else tokenizers.of_kind(options.tag)
    translator = replace(translator, search=search, tokenizers=tokenizers)
    translations, tokens = translator.translate(lines, n_best=options.n_best), translator.source_tokens
    links = Inspector(translator, [model]).span_links(lines, translations) if options.links else [()] * len(lines)
    found = [
        Line(one, [[*tokens(piece), EOS] for piece in one.pieces], [[] for _ in one.pieces], of_line)
        for one, of_line in zip(translations, links, strict=True)
    ]
    if not options.attention or isinstance(model, DecoderOnlyTranslator):  # which has none to the source alone
        return found
    sources, targets, owners, n_weights = [], [], list[list[list[list[float]]]](), 0
    for line in found:
        for piece, weights in zip(line.translation.pieces, line.attention, strict=True):
            more = (len(piece.ids) + 1) * sum(len(candidate.tokens) for candidate in piece.candidates)
            if not piece.ids or n_weights + more > _MOST_WEIGHTS:
                continue
            n_weights += more
            for candidate in piece.candidates:
                sources.append(piece.ids)
                targets.append(candidate.ids)
                owners.append(weights)
    for weights, matrix in zip(owners, mean_cross_attention([model], sources, targets), strict=True):
        weights.append([[round(value, _WEIGHT_DIGITS) for value in row] for row in matrix.tolist()])
    return found


class Route(NamedTuple):
    """A run that is served, with codes of languages without regions; `translate` is called in a separate thread."""

    name: str
    src_lang: str
    tgt_lang: str
    beam: int  # of its own search settings
    translate: Callable[[Sequence[str], Options], list[Line]]
    examples: Sequence[str] = ()  # sentences of the kind that it learned from
    kinds: Sequence[str] = ()  # of text, that its vocabulary has tags for

    @property
    def direction(self) -> str:
        """Translation direction, for display."""
        return f"{self.src_lang}→{self.tgt_lang}"


class Metrics:
    """Counters of one server, for Prometheus."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a time stamp beside each, which nobody asks for
        self.registry = of = CollectorRegistry()
        answered = "Requests answered, by status; 499: the client has gone."
        self.requests = Counter("miyako_requests", answered, ["path", "status"], registry=of)
        lasted, times = "Seconds from a request's head to its answer's end.", (*Histogram.DEFAULT_BUCKETS[:-1], 30)
        self.seconds = Histogram("miyako_request_seconds", lasted, ["path"], registry=of, buckets=times)
        sizes = (1, 2, 4, 8, 16, 32, 64, 128)
        self.batches = Histogram("miyako_batch_texts", "Texts per batch.", ["run"], registry=of, buckets=sizes)
        self.waiting = Gauge("miyako_queue_texts", "Texts waiting for a run.", ["run"], registry=of)


class Service:
    """Runs that translate requests, once their batchers are entered.

    Of several runs with the same direction, the first is used unless another is named.
    """

    def __init__(self, routes: Sequence[Route], limits: Limits) -> None:
        self.routes, self.limits, self.metrics = routes, limits, Metrics()
        self.batchers: dict[str, Batcher[Options, Line]] = {}
        for route in routes:
            if route.name in self.batchers:
                raise ValueError(f"two runs are called {route.name}, but runs are chosen by name: rename one")
            count = self.metrics.batches.labels(route.name).observe
            sizes = limits.batch_texts, limits.batch_chars, limits.collect_ms / 1000, limits.queue_texts
            batcher = Batcher(route.translate, *sizes, count, Options.weight)
            self.batchers[route.name] = batcher
            self.metrics.waiting.labels(route.name).set_function(batcher.n_waiting)

    @property
    def languages(self) -> list[str]:
        """All languages on either side, those to translate from first."""
        sources = [route.src_lang for route in self.routes]
        return list(dict.fromkeys([*sources, *(route.tgt_lang for route in self.routes)]))

    def targets(self, language: str) -> list[str]:
        """Return the languages that a text of this one can be had in: itself, too, for it is left as it is."""
        return list(dict.fromkeys([*(r.tgt_lang for r in self.routes if r.src_lang == language), language]))

    def route(self, text: str, source: str, target: str) -> tuple[Route | None, Detected | None]:
        """Choose the run for a text as `choose` does; none if it is in the language to translate into already."""
        for code in (source, target):
            if not any(_fits(code, language) for language in self.languages):
                raise HTTPException(400, f"{code} is not supported")  # as LibreTranslate says it
        if source.lower() != AUTO:
            return (None, None) if _same(source, target) else self.choose(text, source, target)
        detected = detect(text, self.languages)
        if detected is not None and _same(detected.language, target):
            return None, detected
        return self.choose(text, source, target)

    def choose(
        self, text: str, source: str = AUTO, target: str = AUTO, name: str | None = None
    ) -> tuple[Route, Detected | None]:
        """Choose the run for a text, or answer 400; also return the language if it had to be detected."""
        directions = ", ".join(dict.fromkeys(route.direction for route in self.routes))
        if name not in (None, *self.batchers):
            raise HTTPException(400, f"no run {name!r} is served: choose from {', '.join(self.batchers)}")
        fitting = [
            route
            for route in self.routes
            if name in (None, route.name) and _fits(source, route.src_lang) and _fits(target, route.tgt_lang)
        ]
        if not fitting:
            run = f"run {name}" if name else "run"
            raise HTTPException(400, f"no {run} translates {source}→{target}: choose from {directions}")
        if source.lower() != AUTO or name is not None:
            return fitting[0], None
        detected = detect(text, list(dict.fromkeys(route.src_lang for route in fitting)))
        if detected is None:
            raise HTTPException(
                400, f"the language of the text cannot be translated {AUTO}→{target}: choose from {directions}"
            )
        return next(route for route in fitting if route.src_lang == detected.language), detected

    async def translate(self, chosen: Sequence[tuple[Route, str]], options: Options) -> list[list[Line]]:
        """Translate the texts of one request, line by line; all, or none with status 400 or 503."""
        for route, _ in chosen:
            if options.tag and options.tag not in route.kinds:
                known = ", ".join(route.kinds) or "none"
                raise HTTPException(400, f"tag={options.tag}, but run {route.name} knows {known}: leave it out")
        answers: list[asyncio.Future[list[Line]]] = []
        try:
            for route, text in chosen:
                answers.append(self.batchers[route.name].enter(_lines(text), options))
            return await asyncio.gather(*answers)
        except asyncio.QueueFull:
            busy = "too many texts are waiting: try again in a moment"
            raise HTTPException(503, busy, {"Retry-After": "1"}) from None
        finally:
            for answer in answers:
                answer.cancel()  # takes abandoned texts out of the queue

    def refuse_too_much(self, texts: Sequence[str]) -> None:
        """Refuse texts over the limits with status 400; call this before doing anything else with a request."""
        lines = [line for text in texts for line in _lines(text)]
        for n, most, unit in (
            (len(lines), self.limits.max_texts, "lines"),
            (sum(map(len, lines)), self.limits.max_chars, "characters"),
        ):
            if n > most:
                raise HTTPException(400, f"{n:,} {unit} exceed the limit of {most:,}: send them in parts")


def _same(code: str, language: str) -> bool:
    return primary_language(code) == primary_language(language)


def _fits(code: str, language: str) -> bool:
    return code.lower() == AUTO or _same(code, language)


def _lines(text: str) -> list[str]:
    return text.replace("\r\n", "\n").split("\n")


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address; requests that arrive before the server is ready wait."""
    if not 0 <= port <= _LAST_PORT:
        raise ValueError(f"port {port} does not exist: give --port 0 (any free port) to {_LAST_PORT}")
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family, dualstack_ipv6=family == socket.AF_INET6)
    except UnicodeError:  # raised for names that no host can have
        raise ValueError(f"{host!r} is not a host name: --host 127.0.0.1 is this machine") from None
    except OSError as error:
        remedies = {
            errno.EADDRINUSE: "another program uses it: give another port, or --port 0 for any free one",
            errno.EACCES: "ports below 1024 are reserved for the system: give another, such as --port 8000",
        }
        remedy = remedies.get(error.errno or 0, "--host 127.0.0.1 is this machine")
        reason = str(error.strerror).partition(" (while")[0]
        raise ValueError(f"cannot listen on {host}, port {port} ({reason}): {remedy}") from None


def address(bound: socket.socket) -> str:
    """Return the URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Connection(H11Protocol):
    """A connection that is closed when its client takes too long to send a head or to read an answer.

    When there are too many, the one that has waited longest for its client is closed.
    """

    _late: ClassVar[dict["Connection", asyncio.TimerHandle]] = {}  # those that wait for their client, longest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of TCP, always
        """Wait for a head."""
        super().connection_made(transport)
        self._watch()
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # of which a connection takes one
        if len(self.connections) > max(1, min(_MOST_CONNECTIONS, files - _SPARE_FILES)):
            oldest = next(iter(self._late))
            oldest._forget()  # its end is noted later, and others may come before
            oldest.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read on; a second head is waited for as long as the first."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait until the answer is read, or for another head."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._forget()
        super().connection_lost(exc)

    def _watch(self) -> None:
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering and not self.flow.write_paused:
            self._forget()
        elif self not in self._late and self in self.connections:  # an answer may end after its connection
            limit = _ANSWER_S if self.transport.get_write_buffer_size() else _HEAD_S
            self._late[self] = self.loop.call_later(limit, self.transport.abort)

    def _forget(self) -> None:
        if timer := self._late.pop(self, None):
            timer.cancel()


class Server(uvicorn.Server):
    """Serves an application until it is told to stop.

    The first SIGINT or SIGTERM makes it finish pending requests and accept no new ones; a second one ends it at once.
    """

    def __init__(self, app: ASGIApp, on_ready: Callable[[], object]) -> None:
        quiet: dict[str, Any] = {"log_level": "warning", "access_log": False, "server_header": False}
        how: dict[str, Any] = {"http": Connection, "ws": "none", "backlog": _BACKLOG}
        super().__init__(uvicorn.Config(app, timeout_graceful_shutdown=_LAST_S, **how, **quiet))
        self._on_ready = on_ready
        self._signal: int | None = None

    def serve_until_told(self, bound: socket.socket) -> None:
        """Serve on a bound socket until SIGTERM, or until SIGINT, which raises KeyboardInterrupt in the end."""
        self.run(sockets=[bound])
        if self._signal == signal.SIGINT:
            raise KeyboardInterrupt

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then call `on_ready`."""
        await super().startup(sockets)
        self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 (the signature is uvicorn's)
        """Handle a signal; unlike uvicorn's, this does not raise it again when all is served."""
        if self._signal is not None:
            os._exit(128 + sig)  # any gentler exit would wait for threads that translate
        self._signal = sig
        self.should_exit = True
