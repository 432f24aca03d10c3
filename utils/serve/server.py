"""What a server lets in, counts and waits for: requests, connections, its socket, and a clean shutdown."""

import asyncio
import errno
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import ClassVar

import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

_LAST_PORT = 65535
_HEAD_S = 10.0  # time limit for the head of a request, of some hundred bytes
_ANSWER_S = 60.0  # time limit for reading an answer, of at most some megabytes
_MAX_CONNECTIONS, _BACKLOG = 1000, 100
_SPARE_FILES = 500  # of which most are for connections that are accepted and not yet counted, some backlogs full
_SHUTDOWN_S = 60  # time limit for pending answers on shutdown; a client that does not read gets no more


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


@dataclass
class Gate:
    """Middleware that counts every request, and refuses bodies over the limit whether or not they announce it.

    Other paths than the given ones count as one, since anybody could fill the memory with names.
    """

    app: ASGIApp
    metrics: Metrics
    paths: Sequence[str]
    max_bytes: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request and count it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, status, is_head = time.perf_counter(), 500, scope["method"] == "HEAD"
        scope = {**scope, "method": "GET"} if is_head else scope  # the same answer, without its body
        announced, n_bytes = int(dict(scope["headers"]).get(b"content-length", b"0")), 0

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
            await send({**message, "body": b""} if is_head and "body" in message else message)

        try:
            await self.app(scope, limited, noted)
        finally:
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.requests.labels(path, status).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - begin)


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


class Server(uvicorn.Server):
    """Serves an application until it is told to stop.

    The first SIGINT or SIGTERM makes it finish pending requests and accept no new ones; a second one ends it at once.
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
        super().__init__(config)
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
