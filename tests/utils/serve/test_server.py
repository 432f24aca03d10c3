"""A server with a socket and signals: unavailable addresses, and shutdown."""

import os
import signal
import socket
import threading
from collections.abc import Callable

import httpx
import pytest

from tests.utils.serve.served import Scribe, eventually, serving
from utils.serve.api import create_app
from utils.serve.service import Limits, Server, address, bind


def test_a_taken_port_is_named_with_another() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=rf"cannot listen on 127.0.0.1, port {port} .*--port 0 for any"):
            bind("127.0.0.1", port)


def test_of_two_that_begin_at_once_one_has_the_port() -> None:
    with bind("127.0.0.1", 0) as first, pytest.raises(ValueError, match="another program uses it"):
        bind("127.0.0.1", first.getsockname()[1])


@pytest.mark.parametrize("port", [65536, 99999999, -1])
def test_a_port_that_there_is_not_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match=rf"port {port}\b"):
        bind("127.0.0.1", port)


@pytest.mark.parametrize("host", ["..", "a" * 70 + ".org"])
def test_a_name_that_no_machine_can_have_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match=r"is not a host name: --host 127\.0\.0\.1 is this machine"):
        bind(host, 0)


def test_an_address_that_is_not_ours_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot listen on 192.0.2.1, port 80\d\d .*: --host"):
        bind("192.0.2.1", 8077)


def test_a_browser_is_given_the_address() -> None:
    with bind("127.0.0.1", 0) as bound:
        assert address(bound) == f"http://127.0.0.1:{bound.getsockname()[1]}"


def test_it_is_reached_through_its_socket() -> None:
    with serving([Scribe().route()]) as url:
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")


@pytest.fixture(autouse=True)
def left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Statuses that the process was to be left with at once: not even a visitor in trouble ends the tests."""
    left: list[int] = []
    monkeypatch.setattr(os, "_exit", left.append)
    return left


class Visitor(threading.Thread):
    """Queries the server from another thread, as this one has to serve: only it receives signals."""

    def __init__(self, scribe: Scribe, url: str, then: Callable[["Visitor"], None]) -> None:
        super().__init__()
        self.scribe, self.url, self._then = scribe, url, then
        self.answers: list[httpx.Response] = []
        self.trouble: BaseException | None = None

    def run(self) -> None:
        try:
            with self.scribe.held_up():
                self._then(self)
        except BaseException as error:
            self.trouble = error
            os.kill(os.getpid(), signal.SIGTERM)

    def ask(self, text: str) -> threading.Thread:
        question = {"q": text, "source": "ja", "target": "en"}
        thread = threading.Thread(
            target=lambda: self.answers.append(httpx.post(f"{self.url}/translate", json=question, timeout=20))
        )
        thread.start()
        return thread

    def read(self, path: str) -> str:
        return httpx.get(f"{self.url}/{path}", timeout=60).text

    def is_refused(self) -> bool:
        try:
            self.read("health")
        except httpx.ConnectError:
            return True
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            pass  # it was closing: look again
        return False


def serve(then: Callable[[Visitor], None]) -> list[httpx.Response]:
    """Return what a server answered to a visitor while it was told to end."""
    scribe, bound = Scribe(), bind("127.0.0.1", 0)
    visitor = Visitor(scribe, address(bound), then)
    app = create_app([scribe.route()], Limits(collect_ms=0, batch_texts=1))
    try:
        Server(app, visitor.start).serve_until_told(bound)
    finally:
        visitor.join(20)
        if visitor.trouble:
            raise visitor.trouble
    return visitor.answers


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_has_begun_or_waits_is_finished_and_nothing_new_is_taken(number: signal.Signals) -> None:
    answers: list[httpx.Response] = []

    def end_meanwhile(visitor: Visitor) -> None:
        first = visitor.ask("ab")
        assert visitor.scribe.has_begun.wait(20)
        second = visitor.ask("cd")
        assert eventually(lambda: "status" in visitor.read("health"))
        assert eventually(lambda: 'miyako_queue_texts{run="scribe"} 1' in visitor.read("metrics"))
        os.kill(os.getpid(), number)
        assert eventually(visitor.is_refused)
        threading.Event().wait(0.5)  # time enough to give up
        assert visitor.answers == []
        visitor.scribe.may_work.set()
        first.join(20)
        second.join(20)
        answers.extend(visitor.answers)

    before = signal.getsignal(number)
    if number == signal.SIGINT:
        with pytest.raises(KeyboardInterrupt):
            serve(end_meanwhile)
    else:
        serve(end_meanwhile)
    assert sorted(answer.json()["translatedText"] for answer in answers) == ["ba", "dc"]
    assert signal.getsignal(number) is before


def test_the_second_signal_ends_it_at_once(left: list[int]) -> None:
    def end_twice(visitor: Visitor) -> None:
        visitor.ask("ab")
        assert visitor.scribe.has_begun.wait(20)
        os.kill(os.getpid(), signal.SIGTERM)
        assert eventually(visitor.is_refused)
        assert left == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert eventually(lambda: left == [143])

    serve(end_twice)
    assert left == [143]
