"""A process that listens, answers, and ends well."""

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
_LAST_S = 60  # for answers that are under way when it is told to stop; a client that does not read gets no more


def bind(host: str, port: int) -> socket.socket:
    """A socket that has its address: who asks it before the server is ready waits.

    Args:
        host: name or address of this machine; 127.0.0.1 is reached from itself alone.
        port: 0: any that is free.

    Raises:
        ValueError: the address cannot be had.
    """
    if not 0 <= port <= _LAST_PORT:
        raise ValueError(f"there is no port {port}: give --port 0 (any that is free) to {_LAST_PORT}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with ExitStack() as until_bound:
            bound = until_bound.enter_context(socket.socket(family, kind, protocol))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what was closed a minute ago is free
            bound.bind(address)
            bound.listen()  # else another process that binds now would have the address as well
            until_bound.pop_all()
    except UnicodeError:  # of a name that no machine can have
        raise ValueError(f"{host!r} is no host: --host 127.0.0.1 is this machine") from None
    except OSError as error:
        remedy = "--host 127.0.0.1 is this machine"
        if error.errno == errno.EADDRINUSE:
            remedy = "another program has it: give another, or --port 0 for any that is free"
        elif error.errno == errno.EACCES:
            remedy = "ports below 1024 are the system's: give another, --port 8000"
        raise ValueError(f"cannot listen on {host}, port {port} ({error.strerror}): {remedy}") from None
    return bound


def address(bound: socket.socket) -> str:
    """Where a browser finds it."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """Serves an application until it is told to stop.

    The first SIGINT or SIGTERM lets it finish what it has begun and take nothing new; the second one ends it at once.

    Args:
        app: the application.
        on_ready: is called when it can be asked.
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
        """Serve.

        Raises:
            KeyboardInterrupt: it was SIGINT that ended it.
        """
        self.run(sockets=[bound])
        if self._told == signal.SIGINT:
            raise KeyboardInterrupt

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self._on_ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Inside, signals are for the server; they are not repeated afterwards, as uvicorn's are."""
        if threading.current_thread() is not threading.main_thread():  # signals do not come there
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
            os._exit(128 + number)  # threads that translate would be waited for by any gentler way
        self._told = number
        self.should_exit = True
