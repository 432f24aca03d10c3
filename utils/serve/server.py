"""The server process: listening, answering and shutting down cleanly."""

import errno
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

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
