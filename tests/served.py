"""Runs to serve that are made in an instant, and ways to query them, with or without a socket."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import httpx
import torch
from fastapi import FastAPI

from config.search import Limits, SearchConfig
from const.token import EOS
from tests.tiny import MODEL, lively, tokenizers
from utils.search.inspection import Inspector, SpanLinks
from utils.search.searcher import BeamSearch
from utils.search.translation import Candidate, Piece, Translation
from utils.search.translator import Translator
from utils.serve.api import create_app
from utils.serve.batcher import Step
from utils.serve.server import Server, address, bind
from utils.serve.service import Line, Options, ServedRun, translate_lines
from utils.text.protected import spans
from utils.text.tokenizer import TokenizerPair

ResultT = TypeVar("ResultT")


def translator(back: bool = False, beam: int = 2) -> Translator:
    """From Japanese to English, or back."""
    both = tokenizers()
    pair = TokenizerPair(both.tgt, both.src) if back else both
    model = lively(MODEL, len(pair.src), len(pair.tgt))
    search = SearchConfig(beam_size=beam, max_ratio=1.0, max_length=16)
    return Translator(BeamSearch(model, torch.device("cpu")), pair, "ja" if back else "en", search, 32, 48)


def line_translator(back: bool = False) -> Callable[..., list[Line]]:
    own = translator(back)
    model = lively(MODEL, len(own.tokenizers.src), len(own.tokenizers.tgt))
    return partial(translate_lines, Inspector(own, [model]))


def served_run(name: str = "tiny", back: bool = False) -> ServedRun:
    """With a real network."""
    return ServedRun(name, *(("en", "ja") if back else ("ja", "en")), 2, line_translator(back))


def line_of(source: str, translation: str, links: SpanLinks = (), is_far: bool = False) -> Line:
    candidates = [Candidate(translation, 0.0, [source], [4])]
    lost = [span for span in spans(source, "ja") if "://" in span.text and span.text not in translation]
    pieces = [Piece(source, [4], "", candidates, lost=lost)]
    return Line(Translation(candidates, pieces, [], is_far=is_far), [[source, EOS]], [[]], links)


class Scribe:
    """Reverses texts instead of translating; works only while it is allowed to."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.options: list[Any] = []
        self.threads: set[int] = set()
        self.may_work = threading.Event()
        self.may_work.set()
        self.has_begun = threading.Event()
        self.is_stepping = False  # while it is held up

    def reverse(self, texts: Sequence[str], options: Any, step: Step = lambda: None) -> list[str]:
        self.calls.append(list(texts))
        self.options.append(options)
        self.threads.add(threading.get_ident())
        self.has_begun.set()
        if self.is_stepping:
            while not self.may_work.wait(0.01):
                step()
        assert self.may_work.wait(60)
        if "!" in texts:
            raise RuntimeError("a pen has broken")
        return [text[::-1] for text in texts]

    def translate(self, lines: Sequence[str], options: Options, step: Step) -> list[Line]:
        def links(n: int) -> SpanLinks:
            return [((i, i + 1), (n - i - 1, n - i)) for i in range(n if options.links else 0)]

        return [line_of(text[::-1], text, links(len(text))) for text in self.reverse(lines, options, step)]

    @contextmanager
    def held_up(self) -> Iterator[None]:
        self.has_begun.clear()
        self.may_work.clear()
        try:
            yield
        finally:
            self.may_work.set()

    def served(self, name: str = "scribe", src: str = "ja", tgt: str = "en") -> ServedRun:
        return ServedRun(name, src, tgt, 4, self.translate)


def ask(app: FastAPI, question: Callable[[httpx.AsyncClient], Awaitable[ResultT]]) -> ResultT:
    """Return the result of requests to an application in this process."""

    async def whole() -> ResultT:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://miyako") as client,
        ):
            return await question(client)

    return asyncio.run(whole())


@contextmanager
def serving(runs: Sequence[ServedRun], limits: Limits | None = None) -> Iterator[str]:
    """Yield the address of a server that stops at the end of the block."""
    bound, ready = bind("127.0.0.1", 0), threading.Event()
    server = Server(create_app(runs, limits or Limits()), ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    url = address(bound)
    thread.start()
    try:
        assert ready.wait(60)
        yield url
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


def eventually(holds: Callable[[], bool]) -> bool:
    """Return whether a condition becomes true within a minute."""
    end = time.monotonic() + 60
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return holds()
