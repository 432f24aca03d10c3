"""What a server lets in, counts and waits for: requests, connections, its socket, and a clean shutdown."""

import asyncio
import errno
import ipaddress
import logging
import math
import os
import resource
import signal
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import ClassVar
from urllib.parse import urlsplit

import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

_LAST_PORT = 65535
_HEAD_S = 10.0  # time limit for the head of a request, of some hundred bytes
_ANSWER_S = 60.0  # time limit for reading an answer, of at most some megabytes
_MAX_CONNECTIONS, _BACKLOG = 1000, 100
_SPARE_FILES = 500  # of which most are for connections that are accepted and not yet counted, some backlogs full
_SHUTDOWN_S = 50  # time limit for pending answers on shutdown; then they are told, but not a client that does not read
_LAST_S = 60  # whatever still runs then is ended with the server
_MINUTE = 60.0
# An answer is data, whatever it looks like; the pages have policies of their own.
_AS_DATA = {
    "content-security-policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}


class Metrics:
    """Counters of one server, for Prometheus."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a time stamp beside each, which nobody asks for
        self.registry = registry = CollectorRegistry()
        answered = "Requests answered, by status; 499: the client has gone."
        self.requests = Counter("miyako_requests", answered, ["path", "status"], registry=registry)
        lasted, times = "Seconds from a request's head to its answer's end.", (*Histogram.DEFAULT_BUCKETS[:-1], 30)
        self.seconds = Histogram("miyako_request_seconds", lasted, ["path"], registry=registry, buckets=times)
        sizes = (1, 2, 4, 8, 16, 32, 64, 128)
        self.batches = Histogram("miyako_batch_texts", "Texts per batch.", ["run"], registry=registry, buckets=sizes)
        self.waiting = Gauge("miyako_queue_texts", "Texts waiting for a run.", ["run"], registry=registry)


class Quota:
    """Counts the requests of each client within the last minute; 0: as many as they like."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._times: dict[str, deque[float]] = {}
        self._swept = 0.0

    def spend(self, client: str) -> None:
        """Count a request, or refuse it as LibreTranslate does."""
        now, n = time.monotonic(), self._per_minute
        if not n:
            return
        if now - self._swept > _MINUTE:  # who has not come since is forgotten
            self._times = {other: times for other, times in self._times.items() if times[-1] > now - _MINUTE}
            self._swept = now
        times = self._times.setdefault(client, deque(maxlen=n))
        if len(times) == n and times[0] > now - _MINUTE:
            wait = str(math.ceil(times[0] + _MINUTE - now))
            raise HTTPException(429, f"Slowdown: {n} per 1 minute", {"Retry-After": wait})
        times.append(now)


@dataclass
class Gate:
    """Middleware that counts every request, and refuses bodies over the limit whether or not they announce it.

    It also refuses what pages of other sites make a browser send here: a form, which needs nobody's consent, and any
    request by another name than this machine's, under which a site may lead to an address that only it can reach.

    Other paths than the given ones count as one, since anybody could fill the memory with names.
    """

    app: ASGIApp
    metrics: Metrics
    paths: Sequence[str]
    max_bytes: int
    cors: str | None  # the origin whose pages may use all, or * for any

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request and count it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, status, is_head = time.perf_counter(), 500, scope["method"] == "HEAD"
        scope = {**scope, "method": "GET"} if is_head else scope  # the same answer, without its body
        headers = Headers(scope=scope)
        announced, n_bytes = int(headers.get("content-length", "0")), 0

        async def limited() -> Message:
            nonlocal n_bytes
            message = await receive()
            n_bytes += len(message.get("body", b""))
            if max(announced, n_bytes) > self.max_bytes:
                raise HTTPException(413, f"the request is longer than {self.max_bytes:,} bytes: send it in parts")
            return message

        async def noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            if message["type"] == "http.response.start":
                for name, value in _AS_DATA.items():
                    MutableHeaders(scope=message).setdefault(name, value)
            await send({**message, "body": b""} if is_head and "body" in message else message)

        try:
            if reason := self._reason_to_refuse(scope, headers):
                await JSONResponse({"error": reason}, 403)(scope, receive, noted)
            else:
                await self.app(scope, limited, noted)
        finally:
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.requests.labels(path, status).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - begin)

    def _reason_to_refuse(self, scope: Scope, headers: Headers) -> str:
        if self.cors == "*":
            return ""
        host, origin = _host(f"//{headers.get('host', '')}"), headers.get("origin")
        own = {host, host if self.cors is None else _host(self.cors)}
        at = (scope.get("server") or ("",))[0]
        is_foreign = host != "" and not _is_loopback(host) and (self.cors is None or host != _host(self.cors))
        if is_foreign and _is_loopback(at):
            return f"{host} is not this machine: ask for localhost, or let serve.py --cors name the origin of its pages"
        is_json = headers.get("content-type", "").lower().startswith("application/json")  # a browser asks for it first
        if scope["method"] == "POST" and not is_json and origin is not None and _host(origin) not in own:
            return f"a form of {origin} is not accepted: send JSON, or let serve.py --cors name that origin"
        return ""


def _host(url: str) -> str | None:
    """Return the name of the host in a URL; none: it has none, or is no URL."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return None


def _is_loopback(host: str | None) -> bool:
    try:
        return ipaddress.ip_address((host or "").removeprefix("::ffff:")).is_loopback
    except ValueError:
        return (host or "").rpartition(".")[2] == "localhost"


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

    When there are too many, the one that has waited longest for its client is closed. uvicorn has no setting for
    either; what this uses of its protocol is not documented, so pyproject.toml bounds the version.
    """

    _late: ClassVar[dict["Connection", asyncio.TimerHandle]] = {}  # those that wait for their client, longest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of TCP, always
        """Wait for a head."""
        super().connection_made(transport)
        self._watch()
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # of which a connection takes one
        if len(self.connections) > max(1, min(_MAX_CONNECTIONS, files - _SPARE_FILES)):
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


class OncePerMinute(logging.Filter):
    """Lets each message pass once in a minute, with how often it would have come meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self._times: dict[str, float] = {}  # by message, when it passed last
        self._counts = defaultdict[str, int](int)  # how often it has not passed since

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a message passes."""
        kind = f"{record.msg}{record.exc_info and repr(record.exc_info[1])[:200]}"
        if record.created - self._times.get(kind, -math.inf) < _MINUTE:
            self._counts[kind] += 1
            return False
        if len(self._times) > _MAX_CONNECTIONS:  # kinds, of errors that each say something else
            self._times.clear()
            self._counts.clear()
        self._times[kind] = record.created
        if n := self._counts.pop(kind, 0):
            record.msg = f"{record.msg} ({n:,} more since the last such line)"
        return True


class Server(uvicorn.Server):
    """Serves an application until it is told to stop.

    The first SIGINT or SIGTERM makes it finish pending requests and accept no new ones, for a minute at most; a second
    one ends it at once.
    """

    def __init__(self, app: ASGIApp, on_ready: Callable[[], object]) -> None:
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            backlog=_BACKLOG,
            timeout_graceful_shutdown=_SHUTDOWN_S,
            log_level="warning",
            access_log=False,
            server_header=False,
        )
        logging.getLogger("uvicorn.error").addFilter(OncePerMinute())  # anybody can send what is not HTTP
        super().__init__(config)
        self._on_ready = on_ready
        self._signal: int | None = None
        self._last = threading.Timer(_LAST_S, os._exit)
        self._last.daemon = True

    def serve_until_told(self, bound: socket.socket) -> None:
        """Serve on a bound socket until SIGTERM, or until SIGINT, which raises KeyboardInterrupt in the end."""
        self.run(sockets=[bound])
        self._last.cancel()
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
        self._last.args = [128 + sig]
        self._last.start()
