"""The server: batches, limits, LibreTranslate's API and the page's, metrics, shutdown, serve.py and its benchmark."""

import asyncio
import base64
import codecs
import gc
import hashlib
import inspect
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import asdict, replace
from functools import partial
from html.parser import HTMLParser
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import httpx
import pytest
import torch
import uvicorn
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.h11_impl import H11Protocol

import serve
from bench import serve as bench
from bench.serve import Answer, Measurement, Question
from config.search import Limits
from const.path import ROOT
from const.token import EOS
from tests.served import Scribe, ask, eventually, line_of, line_translator, served_run, serving, translator
from tests.tiny import MODEL, TEXT, Outcome, language_run, lively, outcome, run, tagged_tokenizers, tokenizers
from utils.config import TranslationConfig
from utils.load import examples, load_run
from utils.run import CONFIG, WEIGHTS, create_run, find_run
from utils.search.forced import attention_weights
from utils.search.inspection import Inspector
from utils.search.searcher import BeamSearch
from utils.search.translation import Translation
from utils.serve import api, server, service
from utils.serve import batcher as batcher_room
from utils.serve.api import create_app, page
from utils.serve.batcher import Batcher, GivenUp, Step, Turns
from utils.serve.server import Server, bind
from utils.serve.service import Line, Options, ServedRun, Service, Text, translate_lines
from utils.terminal.output import notices
from utils.text.tokenizer import TokenizerPair
from utils.text.words import WordPair, Words
from utils.training.checkpoint import write_weights
from utils.training.schedule import Rank

# An unclosed socket is reported in the test that left it open, not wherever it happens to be collected.
pytestmark = pytest.mark.filterwarnings("error::ResourceWarning", "error::pytest.PytestUnraisableExceptionWarning")

LONGEST = 200
LIMITS = Limits(max_chars=LONGEST, max_texts=8, queue_texts=8, batch_texts=4, timeout_s=60)
JA_EN = {"source": "ja", "target": "en"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
AIOHTTP = {"content-type": "application/octet-stream"}
CURL = {"content-type": f"{FORM['content-type']}; x"}
LONG = "\U0001f600" * LONGEST  # twelve bytes per character, as JSON and as a form


@pytest.fixture
def scribe() -> Scribe:
    return Scribe()


# ---- texts that share a batch


def batched(
    scribe: Scribe,
    question: Callable[[Batcher[str, str]], Awaitable[Any]],
    weight: Callable[[str], int] = lambda _: 1,
    **settings: Any,
) -> Any:
    """Return the result of requests to a batcher of the scribe's; an answer that never comes is a failure."""

    async def whole() -> Any:
        limits = Limits(**{"batch_texts": 8, "batch_chars": 100, "collect_ms": 20} | settings)
        async with asyncio.timeout(50), Batcher(scribe.reverse, limits, weight=weight) as own:
            return await question(own)

    return asyncio.run(whole())


@pytest.mark.parametrize(
    ("chunks", "settings", "calls"),
    [
        ("ab.x c.x", {}, "cab.x"),  # together, the shortest first
        ("a.x b.x", {"batch_texts": 2, "collect_ms": 60_000}, "ab.x"),  # a full batch waits for nobody
        ("ab.x cd.x e.x fghi.x", {"batch_texts": 3}, "eab.x cd.x fgh.x i.x"),  # a large request takes several
        ("a.x b.y c.x d.y", {}, "ac.x bd.y"),  # other options apart, the oldest first
    ],
)
def test_batches_are_made_in_one_other_thread(
    scribe: Scribe, chunks: str, settings: dict[str, Any], calls: str
) -> None:
    pairs = [chunk.split(".") for chunk in chunks.split()]

    async def question(batcher: Batcher[str, str]) -> list[list[str]]:
        return await asyncio.gather(*(batcher.enter(list(texts), options) for texts, options in pairs))

    assert batched(scribe, question, **settings) == [list(texts) for texts, _ in pairs]
    batches = [f"{''.join(texts)}.{options}" for texts, options in zip(scribe.calls, scribe.options, strict=True)]
    assert batches == calls.split()
    assert len(scribe.threads - {threading.get_ident()}) == len(scribe.threads) == 1


def test_a_short_request_passes_long_ones(scribe: Scribe) -> None:
    """It comes when two long ones wait, one of them begun; what takes three times as long is split into thirds."""

    async def question(batcher: Batcher[str, str]) -> list[list[str]]:
        with scribe.held_up():
            long = [asyncio.ensure_future(batcher.enter(text, "y")) for text in ("abcdefgh", "ijklmnop")]
            assert await asyncio.to_thread(scribe.has_begun.wait, 40)
            short = asyncio.ensure_future(batcher.enter("z", "x"))
        return await asyncio.gather(*long, short)

    answers = batched(scribe, question, batch_texts=9, collect_ms=0, weight={"x": 1, "y": 3}.__getitem__)
    assert answers == [[*"abcdefgh"], [*"ijklmnop"], ["z"]]
    assert ["".join(call) for call in scribe.calls] == ["abc", "z", "def", "gh", "ijk", "lmn", "op"]


def test_long_texts_are_translated_one_by_one_the_first_first_and_short_ones_pass(scribe: Scribe) -> None:
    """What has been given up meanwhile is not translated, and what fits is translated together."""
    long = [letter * 2000 for letter in "abcde"]

    async def question(batcher: Batcher[str, str]) -> list[list[str]]:
        with scribe.held_up():
            answers = [asyncio.ensure_future(batcher.enter([text], "x")) for text in long]
            assert await asyncio.to_thread(scribe.has_begun.wait, 40)
            short = ["s" * 60, "t" * 60], ["u" * 30], ["v" * 30]
            answers += [asyncio.ensure_future(batcher.enter(texts, "x")) for texts in short]
            answers.pop(2).cancel()
        return await asyncio.gather(*answers)

    answers = batched(scribe, question, batch_texts=64, collect_ms=0)
    assert [text[0] for text, *_ in answers] == [*"abdesuv"]
    first, second, *rest = ["".join(text[0] for text in call) for call in scribe.calls]
    assert (first, second) == ("a", "uv")
    assert [call for call in rest if call in "bde"] == [*"bde"]
    assert [call for call in rest if call not in "bde"] == [*"st"]


class Copyist:
    """Copies texts; long ones step by step, until it is told to finish them."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.may_finish = threading.Event()

    def copy(self, texts: Sequence[str], _: str, step: Step) -> list[str]:
        self.begun.append(texts[0][0])
        while len(texts[0]) > 500 and not self.may_finish.wait(0.001):
            step()
        return list(texts)


def test_short_texts_pass_between_the_steps_of_long_ones_which_each_client_has_one_of_at_a_time() -> None:
    own = Copyist()

    async def question() -> None:
        async with asyncio.timeout(50), Batcher(own.copy, Limits(collect_ms=0)) as batcher:
            long = [batcher.enter([letter * 1500], "x", client) for letter, client in ("aA", "bA", "cB", "dC", "eD")]
            while len(own.begun) < 3:
                await asyncio.sleep(0.01)
            for letter in "st":
                assert await batcher.enter([letter], "x", "A") == [letter]
            assert own.begun == [*"acdst"]  # of three clients, one of each
            assert not any(answer.done() for answer in long)
            own.may_finish.set()
            assert [text[0] for (text,) in await asyncio.gather(*long)] == [*"abcde"]

    asyncio.run(question())


def test_long_texts_have_a_quarter_of_the_steps_however_many_there_are() -> None:
    begun, steps = threading.Event(), list[str]()

    def work(texts: Sequence[str], _options: str, step: Step) -> list[str]:
        for _ in range(30 if len(texts[0]) < 500 else 1000):
            step()
            if len(steps) == 200:
                raise GivenUp
            time.sleep(0.002)
            steps.append(texts[0][0])
            begun.set()
        return list(texts)

    async def question() -> None:
        async with AsyncExitStack() as stack:
            turns = Turns()
            one, other = [
                await stack.enter_async_context(Batcher(work, Limits(collect_ms=0), turns=turns)) for _ in range(2)
            ]
            long = [run.enter([letter * 1500], "x", letter) for run in (one, other) for letter in "abc"]
            await asyncio.to_thread(begun.wait, 40)
            steps.clear()
            await one.enter(["s"], "x", "a")
            assert 30 < len(steps) < 60  # and not 200
            steps.extend("s" * (200 - len(steps)))  # which ends the others
            del long

    asyncio.run(question())


@pytest.mark.parametrize("n_at_once", [1, 2])
def test_as_many_batches_as_there_may_be_work_at_a_time(n_at_once: int) -> None:
    working, most, may_end = set[str](), list[int](), threading.Event()

    def work(texts: Sequence[str], _: str, step: Step) -> list[str]:
        step()
        working.add(texts[0])
        most.append(len(working))
        may_end.wait(0.2)
        working.remove(texts[0])
        return list(texts)

    async def question() -> None:
        async with Batcher(work, Limits(collect_ms=0), turns=Turns(n_at_once)) as batcher:
            await asyncio.gather(*(batcher.enter([letter * 1500], "x", letter) for letter in "abc"))

    asyncio.run(question())
    assert max(most) == n_at_once


def test_what_nobody_waits_for_any_more_is_given_up_between_two_steps() -> None:
    own = Copyist()

    async def question() -> None:
        async with asyncio.timeout(50), Batcher(own.copy, Limits(collect_ms=0)) as batcher:
            gone = batcher.enter(["a" * 900], "x")
            while not own.begun:
                await asyncio.sleep(0.01)
            gone.cancel()
            last = batcher.enter(["b" * 900], "x")  # of the same client: only when the first is given up
            while len(own.begun) < 2:
                await asyncio.sleep(0.01)
            last.cancel()
        assert own.begun == [*"ab"]  # and the block has ended

    asyncio.run(question())


def test_what_would_take_too_long_is_refused_at_once_with_what_it_would_take() -> None:
    own = Copyist()

    async def question() -> None:
        service = Service([Scribe().served()._replace(translate=own.copy)], Limits(collect_ms=0))  # type: ignore[arg-type]
        async with asyncio.timeout(50), service.batchers["scribe"] as batcher:
            text = Text("a" * 2000, run=service.runs[0])
            batcher._timed, batcher._timed_s = 1000.0, 20.0  # a fiftieth of a second for each character
            with pytest.raises(HTTPException, match=r"2,000 characters take about 40 .* send at most 1,500") as refusal:
                await service.translate([text], Options())
            assert refusal.value.status_code == 400
            batcher._timed_s = 10.0
            first = asyncio.ensure_future(service.translate([text], Options(), "A"))
            while not own.begun:
                await asyncio.sleep(0.01)
            with pytest.raises(HTTPException, match="would take about 40 seconds") as busy:
                await service.translate([text], Options(), "A")
            assert (busy.value.status_code, busy.value.headers) == (503, {"Retry-After": "10"})
            await service.translate([Text("b", run=service.runs[0])], Options(), "A")  # which passes
            own.may_finish.set()
            await first

    asyncio.run(question())


def test_the_speed_is_that_of_the_last_large_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(batcher_room, "time", Mock(monotonic=lambda: now))

    def work(texts: Sequence[str], *_: object) -> list[str]:
        nonlocal now
        now += 0.01 * sum(map(len, texts))
        return list(texts)

    async def question() -> None:
        async with asyncio.timeout(50), Batcher(work, Limits(collect_ms=0)) as batcher:
            assert batcher.seconds(["c" * 1000], "x") == 0
            await batcher.enter(["a" * 60], "x")  # too few to tell
            assert batcher.seconds(["c" * 1000], "x") == 0
            await batcher.enter(["b" * 600], "x")
            assert batcher.seconds(["c" * 1000], "x") == pytest.approx(10)

    asyncio.run(question())


def test_a_failure_is_the_answer_to_who_caused_it_alone_and_who_has_given_up_is_not_worked_for(scribe: Scribe) -> None:
    async def question(batcher: Batcher[str, str]) -> list[Any]:
        with scribe.held_up():
            gone, *others = (batcher.enter([text], "x") for text in "ab!c")
            assert await asyncio.to_thread(scribe.has_begun.wait, 40)
            gone.cancel()
        return await asyncio.gather(*others, return_exceptions=True)

    first, spoilt, last = batched(scribe, question)
    assert (first, str(spoilt), last) == (["b"], "a pen has broken", ["c"])
    assert scribe.calls == [["a", "b", "!", "c"], ["b"], ["!"], ["c"]]


# ---- a translator for many requests


LINES = [TEXT.src[0], "", TEXT.src[77], "  "]


def test_lines_are_translated_as_the_translator_does_with_the_weights_of_each_candidate() -> None:
    own = line_translator()
    lines = own(LINES, Options(None, 3, True))
    assert [line.translation for line in lines] == translator(beam=3).translate(LINES, n_best=3)
    # an earlier request leaves no trace
    assert [line.translation for line in own(LINES, Options())] == translator().translate(LINES)
    src, tgt = tokenizers()
    ids = {token: i for i, token in enumerate(tgt.tokens(range(len(tgt))))}
    explicit = lively(replace(MODEL, fused=False), len(src), len(tgt))
    for text, line in zip(LINES, lines, strict=True):
        if not text.strip():
            assert not any(line.attention)
            continue
        (source,) = src.encode([text])
        assert line.source_tokens == [[*src.tokens(source), EOS]]
        for candidate, weights in zip(line.translation.candidates, line.attention[0], strict=True):
            target = [ids[token] for token in candidate.tokens]
            expected = attention_weights(explicit, source, target)["cross"][-1].mean(0)[:-1]
            torch.testing.assert_close(torch.tensor(weights).view(-1, len(source) + 1), expected, atol=6e-4, rtol=0)


def test_each_sentence_has_its_weights_unless_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = TEXT.src[:3]
    (together,) = line_translator()(["".join(sentences)], Options(attention=True))
    alone = line_translator()(sentences, Options(attention=True))
    assert together.source_tokens == [line.source_tokens[0] for line in alone]
    for ours, line in zip(together.attention, alone, strict=True):
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(line.attention[0]), atol=2e-3, rtol=0)
    sizes = [len(line.attention[0][0]) * len(line.source_tokens[0]) for line in alone]
    monkeypatch.setattr(service, "_MAX_WEIGHTS", sizes[0] + sizes[1])
    few = line_translator()(sentences, Options(attention=True))
    assert [len(line.attention[0]) for line in few] == [1, 1, 0]


# ---- the choice of a run


SERVICE = Service(
    [
        Scribe().served(name, *langs.split())
        for name, langs in (("first", "ja en"), ("other", "ja en"), ("back", "en ja"), ("german", "de en"))
    ],
    Limits(),
)


def test_a_run_is_chosen_or_the_choice_is_named() -> None:
    for text, source, target, name, expected, language in (
        ("駅は", "ja", "en", None, "first", None),
        ("駅は", "auto", "auto", None, "first", "ja"),
        ("The", "auto", "auto", None, "back", "en"),
        ("Der", "auto", "en", None, "german", "de"),
        ("The", "en", "auto", None, "back", None),
        ("The", "auto", "auto", "other", "other", None),  # an explicitly named run is used as it is
        ("", "auto", "ja", None, "back", "en"),
    ):
        run, detected = SERVICE.choose(text, source, target, name)
        assert (run.name, detected and detected.language) == (expected, language)
    for asked, complaint in (
        (("x", "ja", "fr", None), "ja→fr: choose from ja→en, en→ja, de→en"),
        (("駅は", "auto", "ja", None), "auto→ja: choose from"),
        (("x", "auto", "auto", "none"), "choose from first, other, back, german"),
    ):
        with pytest.raises(HTTPException, match=complaint):
            SERVICE.choose(*asked)
    chinese = Service([Scribe().served("chinese", "ja", "zh")], Limits())
    with pytest.raises(HTTPException, match="the language of the text cannot be translated auto→auto"):
        chinese.choose_if_needed("The", "auto", "auto")


def test_of_several_runs_in_one_direction_the_one_that_reads_a_text_best_is_chosen() -> None:
    def served(name: str, known: str, tgt: str = "en") -> ServedRun:
        return Scribe().served(name, tgt=tgt)._replace(log_prob=lambda text: -1.0 * len({*text} - {*known}))

    runs = [served("temples", "寺塔"), served("trains", "駅車"), served("german", "寺塔駅車", "de")]
    service = Service(runs, Limits())
    for text, target, expected in (("寺の塔", "en", "temples"), ("駅の車", "auto", "trains"), ("山", "en", "temples")):
        assert {service.choose(text, source, target)[0].name for source in ("ja", "auto")} == {expected}
    assert service.choose("寺の塔", name="trains")[0].name == "trains"

    def rated(name: str, log_prob: float) -> ServedRun:
        return served(name, "")._replace(log_prob=lambda _: log_prob)

    for of_project, expected in ((-9.5, "own"), (-5.0, "kftt_ja_en")):  # as translate.py chooses
        both = Service([rated("own", -10.0), rated("kftt_ja_en", of_project)], Limits())
        assert both.choose("寺")[0].name == expected


# ---- LibreTranslate's endpoint


def send(method: str, path: str, runs: list[ServedRun], cors: str | None = None, **request: Any) -> httpx.Response:
    return ask(create_app(runs, LIMITS, cors), lambda client: client.request(method, path, **request))


def post(runs: list[ServedRun], path: str = "/translate", **request: Any) -> httpx.Response:
    return send("POST", path, runs, **request)


def get(path: str, runs: list[ServedRun]) -> httpx.Response:
    return send("GET", path, runs)


def translated(runs: list[ServedRun], q: object, **fields: object) -> Any:
    answer = post(runs, json={"q": q, **JA_EN, **fields})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def refused(answer: httpx.Response, status: int) -> str:
    """Return the one-line error of an answer in LibreTranslate's format."""
    assert answer.status_code == status, answer.text
    (error,) = answer.json().values()
    assert list(answer.json()) == ["error"]
    assert isinstance(error, str)
    assert "\n" not in error
    assert len(error) < 300
    return error


def test_texts_lists_and_lines_keep_their_shape(scribe: Scribe) -> None:
    for q, expected in (
        (["寺a", "", "川b", "橋c"], ["a寺", "", "b川", "c橋"]),
        ([], []),
        ("寺a\r\n\n川b\n", "a寺\n\nb川\n"),
        ("<script>寺は古い(1)</script>&amp;", "<script>寺は古い(1)</script>&amp;"[::-1]),
        ("寺" * LONGEST, "寺" * LONGEST),  # just short enough
    ):
        assert translated([scribe.served()], q) == {"translatedText": expected}


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"data": {"q": "寺、川", **JA_EN, "format": "text", "api_key": ""}}, "川、寺"),
        ({"content": "q=寺、川&source=ja&target=en".encode(), "headers": CURL}, "川、寺"),
        ({"files": {"q": (None, "寺、川"), "source": (None, "ja"), "target": (None, "en")}}, "川、寺"),
        ({"content": json.dumps({"q": "寺、川", **JA_EN}).encode()}, "川、寺"),  # of no declared type
        ({"json": {"q": "寺、川", **JA_EN, "api_key": "x", "alternatives": "0"}}, "川、寺"),
        ({"data": {"q": ["寺a", "川b"], **JA_EN}}, ["a寺", "b川"]),
        ({"data": {"q": LONG, **JA_EN}}, LONG),
        ({"params": {"q": "寺、川", **JA_EN}}, "川、寺"),  # as deep-translator asks
        ({"params": {"q": "寺、川", **JA_EN}, "headers": AIOHTTP}, "川、寺"),  # as quart-libretranslate does
        ({"params": {"q": "寺", **JA_EN}, "json": {"q": "寺、川"}}, "川、寺"),  # the body goes before the query
        ({"json": {"q": "寺、川", "source": "JA", "target": "en-US", "format": None, "alternatives": None}}, "川、寺"),
        ({"data": {"q": "寺、川", **JA_EN, "format": "", "alternatives": ""}}, "川、寺"),
    ],
)
def test_json_forms_and_clients_of_libretranslate_say_the_same(
    scribe: Scribe, sent: dict[str, Any], expected: object
) -> None:
    answer = post([scribe.served()], **sent)
    assert (answer.status_code, answer.json()) == (200, {"translatedText": expected})


def test_a_text_in_the_language_that_is_wanted_is_left_as_it_is(scribe: Scribe) -> None:
    texts = ["寺は", "It is  here.\n", "川"]
    answer = translated([scribe.served()], texts, source="auto", alternatives=1)
    assert answer["translatedText"] == ["は寺", "It is  here.\n", "川"]
    assert answer["alternatives"] == [[], [], []]
    assert [guess["language"] for guess in answer["detectedLanguage"]] == ["ja", "en", "ja"]
    assert translated([scribe.served()], "寺", source="ja", target="ja") == {"translatedText": "寺"}
    assert scribe.calls == [["寺は", "川"]]


def test_markup_stays_and_what_cannot_is_named(scribe: Scribe) -> None:
    html = [
        '<p class="x">寺 &amp; 川</p>\n<ul><li><a href="/?a=1&amp;b=2">橋</a></li><li> 山<br>町 </li></ul><!-- 寺 -->',
        "寺は<b>古い</b>",
        "<script>寺 < 川</script><pre>寺 &lt; 川</pre>",
        "<b>寺</b>と<i>川<u>は</u></i>",
        "<p>寺<b>は<p>古い</b></p>",
    ]
    answer = translated([scribe.served()], html, format="html")
    assert answer["translatedText"] == [
        '<p class="x">川 &amp; 寺</p>\n<ul><li><a href="/?a=1&amp;b=2">橋</a></li><li> 山<br>町 </li></ul><!-- 寺 -->',
        "<b>い古</b>は寺",
        html[2],
        "<i><u>は</u>川</i>と<b>寺</b>",
        "<p>は寺<p>い古</b></p>",
    ]
    assert answer["lost_tags"] == [[], [], [], [], ["b"]]
    body = codecs.BOM_UTF8 + json.dumps({"q": "寺川", **JA_EN}).encode()
    assert post([scribe.served()], content=body).json() == {"translatedText": "川寺"}
    assert translated([scribe.served()], "<p>寺川</p>", format="html") == {"translatedText": "<p>川寺</p>"}


def test_a_language_is_told_by_letters(scribe: Scribe) -> None:
    for q, expected in ("Hello", ["en"]), ("寺は", ["ja"]), ("한국어", []), ("Привет, Hi", []):
        guesses = post([scribe.served()], "/detect", data={"q": q}).json()
        assert [guess["language"] for guess in guesses] == expected
    assert refused(post([scribe.served()], "/detect"), 400) == "Invalid request: missing q parameter"


def test_methods_and_origins_are_those_that_are_offered(scribe: Scribe) -> None:
    runs = [scribe.served()]
    for method, path in ("GET", "/detect"), ("POST", "/languages"), ("POST", "/health"), ("POST", "/spec"):
        assert refused(send(method, path, runs), 405)
    whole, head = get("/health", runs), send("HEAD", "/health", runs)
    assert (head.status_code, head.content, head.headers) == (200, b"", whole.headers)
    for cors, allowed in (None, None), ("*", "*"), ("https://a.org", "https://a.org"), ("https://b.org", None):
        answer = send("GET", "/health", runs, cors, headers={"origin": "https://a.org"})
        assert answer.headers.get("access-control-allow-origin") == allowed


def test_the_language_is_found_text_by_text(scribe: Scribe) -> None:
    back = Scribe()
    runs, auto = [scribe.served("there"), back.served("back", "en", "ja")], {"source": "auto", "target": "auto"}
    answer = translated(runs, ["寺は", "temple", "川は"], **auto)
    assert answer["translatedText"] == ["は寺", "elpmet", "は川"]
    assert [guess["language"] for guess in answer["detectedLanguage"]] == ["ja", "en", "ja"]
    assert (scribe.calls, back.calls) == ([["寺は", "川は"]], [["temple"]])
    alone = translated(runs, "temple", **auto)
    assert alone["detectedLanguage"] == {"language": "en", "confidence": 100.0}


def test_alternatives_are_the_next_best() -> None:
    text = f"{TEXT.src[3]}\n寺"
    expected = translator(beam=3).translate(text.split("\n"), n_best=3)
    ranked = ["\n".join(line.candidates[rank].text for line in expected) for rank in range(3)]
    assert translated([served_run()], text, alternatives=2) == {"translatedText": ranked[0], "alternatives": ranked[1:]}


def test_what_a_translation_lacks_and_what_the_model_is_unsure_of_is_said() -> None:
    def lines(texts: Sequence[str], *_: object) -> list[Line]:
        return [line_of(text, "It." if "://" in text else text, is_far="橋" in text) for text in texts]

    runs = [ServedRun("own", "ja", "en", 4, lines)]
    html = "<p>川</p><p>寺はとても古いので、ここにもあります。 https://a.org</p>"
    assert translated(runs, ["川", "寺"]) == {"translatedText": ["川", "寺"]}
    assert translated(runs, "川\nhttps://b.org 山\n橋") == {
        "translatedText": "川\nIt.\n橋",
        "dropped": ["https://b.org"],
        "far": True,
    }
    (piece,) = line_of("山", "yama").translation.pieces
    loop = line_of("山", "yama")
    loop = loop._replace(translation=loop.translation._replace(pieces=[piece._replace(loop="cut")]))
    cut = ServedRun(
        "own", "ja", "en", 4, lambda texts, *_: [loop if text == "山" else line_of(text, "") for text in texts]
    )
    assert translated([cut], ["寺\n山", "寺"])["loop"] == ["cut", ""]
    answer = translated(runs, [html, "temple", "<p>橋</p>"], format="html", source="auto")
    assert (answer["dropped"], answer["far"]) == ([["https://a.org"], [], []], [False, False, True])


def test_what_the_model_cannot_read_is_said_by_the_api_and_to_the_page() -> None:
    runs, text = [served_run()], f"鬱寺\n薔薇\n{TEXT.src[3]}川鳥鬱"
    answer = translated(runs, [text, TEXT.src[3], "薔薇"])
    assert answer["unknown_tokens"] == [["鬱", "鳥鬱"], [], []]
    assert answer["unknown"] == [True, False, True]
    page = {"unknown": True, "unknown_tokens": answer["unknown_tokens"][0]}
    for asked, remarks in (text, page), ("薔薇", {"unknown": True}), (TEXT.src[3], {}):
        assert post(runs, "/api/translate", json={"text": asked}).json()["remarks"] == remarks


def test_a_text_that_is_not_in_the_language_named_is_said_to_be_none(scribe: Scribe) -> None:
    runs = [scribe.served()]
    assert translated(runs, ["temple", "寺", "1"], source="ja")["other_language"] == [True, False, False]
    html = "<p>寺</p><p>temple</p>"
    assert translated(runs, ["<p>temple</p>", html], source="ja", format="html")["other_language"] == [True, False]
    for text, source, said in ("temple", "ja", {"other_language": True}), ("寺", "auto", {}):
        assert post(runs, "/api/translate", json={"text": text, "source": source}).json()["remarks"] == said


def test_all_that_there_is_to_say_is_said_in_all_languages_of_the_page_and_in_the_terminal() -> None:
    for name in Text("").remarks():
        assert name == "lost_tags" or len(re.findall(rf"^    {name}: ", SCRIPT, re.M)) == 2, name
    for name, remark in Translation([], [], []).remarks.items():
        said = Mock(spec=Translation, terms=(), remarks={name: remark})
        assert not notices(said)
        words: Any = {list: ["寺", "{x}", "寺"], str: "寺 {x}", bool: True}[type(remark)]
        said.remarks = {name: words}
        (notice,) = notices(said).values()
        assert isinstance(remark, bool) or notice.endswith(" 寺 {x}")


RAW = {"content-type": "multipart/form-data; boundary=x; charset=raw_unicode_escape"}
SURROGATE = "".join(
    f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
    for name, value in {"q": "\\ud800", **JA_EN}.items()
)


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        ({"json": {**JA_EN}}, "Invalid request: missing q parameter"),
        ({"json": {"q": [1] * 5_000, **JA_EN}}, " more"),
        ({"json": {"q": "x", **JA_EN, "format": "xml"}}, "format: "),
        ({"json": {"q": "x", "source": "ja", "target": "zz"}}, "zz is not supported"),
        ({"json": {"q": "x", "source": "EN", "target": "ja"}}, "no run translates EN→ja: choose from ja→en"),
        ({"json": [1]}, "dictionary"),
        ({"content": b"q=x"}, "the JSON cannot be read: expected value at line 1 column 1"),
        ({"json": {"q": "<![ A ]>", **JA_EN, "format": "html"}}, "the HTML cannot be read"),
        ({"content": b'{"q": "\\ud800", "source": "ja", "target": "en"}'}, "JSON"),
        ({"content": b"q=%ff", "headers": FORM}, "cannot be read"),
        ({"content": "&".join(["q=x"] * 1001).encode(), "headers": FORM}, "cannot be read"),
        ({"path": "/translate?q=%ff"}, "the query cannot be read: send it in UTF-8"),
        ({"files": {"q": ("name", b"x")}}, "files"),
        ({"content": f"{SURROGATE}--x--\r\n".encode(), "headers": RAW}, ""),
        ({"json": {"q": "x" * (LONGEST + 1), **JA_EN}}, "201 characters exceed the limit of 200"),
        ({"json": {"q": "\n" * 8, **JA_EN}}, "9 lines"),
        ({"path": "/api/translate", "json": {"text": "x", "beem": 3}}, "beem: "),
        ({"path": "/api/translate", "json": {"text": "x", "beam": 2, "n_best": 3}}, "give beam=3"),
    ],
)
def test_a_mistake_is_answered_with_one_line(scribe: Scribe, sent: dict[str, Any], complaint: str) -> None:
    assert complaint in refused(post([scribe.served()], **sent), 400)
    assert scribe.calls == []


def test_a_long_body_is_refused_whether_it_says_so_or_not(scribe: Scribe) -> None:
    body = b" " * (LIMITS.max_bytes + 1)
    n_read = 0

    async def in_parts() -> Any:
        nonlocal n_read
        for i in range(0, 8 * len(body), 1000):
            n_read = i
            yield body[:1000]

    for content in (body, in_parts()):
        assert "longer than" in refused(post([scribe.served()], content=content), 413)
    assert n_read < 2 * len(body)
    assert refused(post([scribe.served()], content=body[1:]), 400)


def test_texts_have_the_tag_that_they_are_given_and_others_are_refused(scribe: Scribe) -> None:
    pair = tagged_tokenizers()
    model = lively(MODEL, len(pair.src), len(pair.tgt))
    searcher = BeamSearch(model, torch.device("cpu"))
    inspector = Inspector(replace(translator(), searcher=searcher, tokenizers=pair), [model])
    own = partial(translate_lines, inspector)
    read = {tag: own([TEXT.src[3]], Options(tag=tag))[0].source_tokens[0] for tag in (None, "law", "bt", "", None)}
    text = read[""][1:]
    assert read == {None: read["law"], "law": ["<2en>", "<law>", *text], "bt": ["<2en>", "<bt>", *text], "": read[""]}
    assert "<law>" not in text
    knows, plain = scribe.served()._replace(tags=pair.text_tags), scribe.served("plain", "en", "ja")
    for path, field in (("/translate", "q"), ("/api/translate", "text")):
        for tag in ("bt", "", None):
            assert post([knows], path, json={field: "寺", **JA_EN, "tag": tag}).status_code == 200
            assert scribe.options[-1].tag == tag
        for of, tag, known in ((knows, "it", "bt, law"), (plain, "bt", "none")):
            answer = post([of], path, json={field: "x", "source": of.src_lang, "target": of.tgt_lang, "tag": tag})
            complaint = f"tag={tag}, but run {of.name} knows {known}: leave it out"
            assert (answer.status_code, answer.json()) == (400, {"error": complaint})


# ---- who may ask


@pytest.mark.parametrize(
    ("method", "headers", "cors", "status"),
    [
        ("GET", {"host": "localhost:8000"}, None, 200),
        ("GET", {"host": "[::1]:8000"}, None, 200),
        ("GET", {"host": "evil.example"}, None, 403),  # a name that leads to this machine
        ("GET", {"host": "localhost.evil.example"}, None, 403),
        ("GET", {"host": "good.example"}, "https://good.example", 200),  # of a proxy
        ("GET", {"host": "other.example"}, "https://good.example", 403),
        ("GET", {"host": "other.example"}, "*", 200),
        ("FORM", {"origin": "https://evil.example"}, None, 403),
        ("FORM", {"origin": "null"}, None, 403),
        ("FORM", {"origin": "http://[evil"}, None, 403),
        ("FORM", {"origin": "http://127.0.0.1:3000"}, None, 200),  # the same site
        ("FORM", {"origin": "https://good.example"}, "https://good.example", 200),
        ("FORM", {}, None, 200),
        ("JSON", {"origin": "https://evil.example"}, None, 200),  # which a browser asks for first, in vain
        ("JSON", {"content-type": "text/plain"}, None, 415),
        ("JSON", {"content-type": "text/plain", "origin": "https://evil.example"}, None, 403),
    ],
)
def test_pages_of_other_sites_cannot_use_a_server_of_this_machine(
    scribe: Scribe, method: str, headers: dict[str, str], cors: str | None, status: int
) -> None:
    text = {"q": "寺", **JA_EN}
    ways: dict[str, dict[str, Any]] = {"GET": {}, "FORM": {"data": text}, "JSON": {"content": json.dumps(text)}}
    sent = ways[method]
    if method == "JSON":
        headers = {"content-type": "application/json", **headers}
    path = "/health" if method == "GET" else "/translate"
    answer = ask(
        create_app([scribe.served()], LIMITS, cors),
        lambda client: client.request(
            "GET" if method == "GET" else "POST", f"http://127.0.0.1:8000{path}", headers=headers, **sent
        ),
    )
    assert answer.status_code == status, answer.text
    assert status == 200 or refused(answer, status)


def test_a_key_is_asked_for_as_libretranslate_does(scribe: Scribe) -> None:
    app = create_app([scribe.served()], LIMITS, None, "secret")

    async def question(client: httpx.AsyncClient) -> None:
        for path, asked in (
            ("/translate", {"q": "寺", **JA_EN}),
            ("/detect", {"q": "寺"}),
            ("/api/translate", {"text": "寺"}),
        ):
            for key, status, said in (
                ({}, 400, "Please contact the server operator to get an API key"),
                ({"api_key": "other"}, 403, "Invalid API key"),
            ):
                assert refused(await client.post(path, json={**asked, **key}), status) == said
            assert (await client.post(path, json={**asked, "api_key": "secret"})).status_code == 200
        assert (await client.post("/detect", data={"q": "寺", "api_key": "secret"})).status_code == 200
        settings = (await client.get("/frontend/settings")).json()
        assert (settings["apiKeys"], settings["keyRequired"]) == (True, True)

    ask(app, question)


def test_requests_of_each_client_are_counted_by_the_minute(scribe: Scribe, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(server, "time", Mock(monotonic=lambda: now))
    quota = server.Quota(2)
    for client, passed in ("A", 0), ("B", 1), ("A", 10):
        now = 1000.0 + passed
        quota.spend(client)
    now = 1030.4
    with pytest.raises(HTTPException) as refusal:
        quota.spend("A")
    assert refusal.value.status_code == 429
    assert (refusal.value.detail, refusal.value.headers) == ("Slowdown: 2 per 1 minute", {"Retry-After": "30"})
    quota.spend("B")
    now = 1060.0
    quota.spend("A")  # the first is a minute ago
    now = 1200.0
    quota.spend("C")
    assert quota._times.keys() == {"C"}  # nobody is remembered for long
    monkeypatch.undo()
    limits = replace(LIMITS, req_limit=1)

    async def question(client: httpx.AsyncClient) -> list[int]:
        asked = [await client.post("/translate", json={"q": "寺", **JA_EN}) for _ in range(2)]
        return [answer.status_code for answer in (*asked, await client.get("/health"))]

    assert ask(create_app([scribe.served()], limits), question) == [200, 429, 200]


def test_each_answer_says_what_a_browser_may_do_with_it(scribe: Scribe) -> None:
    for path in "/", "/docs", "/health", "/openapi.json", "/nowhere":
        headers = get(path, [scribe.served()]).headers
        assert headers["x-content-type-options"] == "nosniff"
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
        assert path not in ("/", "/docs") or policy["style-src"].startswith("'sha256-")
    assert "unsafe" not in str(policy)


def test_html_that_never_ends_is_read_once_and_stays(scribe: Scribe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a tag does not end, older Pythons look for its end again and again."""
    counted, calls = HTMLParser.parse_starttag, Counter[str]()

    def parse_starttag(self: HTMLParser, i: int) -> int:
        calls["tags"] += 1
        return counted(self, i)

    monkeypatch.setattr(HTMLParser, "parse_starttag", parse_starttag)
    html = "寺川" + "<p " * 200
    assert translated([scribe.served()], html, format="html")["translatedText"] == "川寺" + "<p " * 200
    assert calls["tags"] < 3
    answer = post([scribe.served()], json={"q": "<p>" * 270, **JA_EN, "format": "html"})
    assert refused(answer, 400) == "810 characters of HTML exceed the limit of 800: send less"


# ---- the page, and its endpoint


def test_the_page_is_told_where_the_model_looked_in_each_sentence(scribe: Scribe) -> None:
    text = f"{TEXT.src[3]}{TEXT.src[7]}\n\nж\n"
    question = {"text": text, "run": "tiny", "n_best": 3, "attention": True, "beam": 4}
    answer = post([scribe.served(), served_run()], "/api/translate", json=question).json()
    assert (answer["run"], answer["source"], answer["target"]) == ("tiny", "ja", "en")
    sentences = answer["sentences"]
    assert [(sentence["source"], sentence["gap"]) for sentence in sentences] == [
        (TEXT.src[3], " "),
        (TEXT.src[7], "\n"),
        ("", "\n"),
        ("ж", "\n"),
        ("", ""),
    ]
    assert [sentence["known"] for sentence in sentences] == [True, True, True, False, True]
    (line,) = line_translator()([TEXT.src[3] + TEXT.src[7]], Options(4, 3, True))
    for i, sentence in enumerate(sentences[:2]):
        assert sentence["source_tokens"] == line.source_tokens[i]
        for candidate, own, weights in zip(
            sentence["candidates"], line.translation.pieces[i].candidates, line.attention[i], strict=True
        ):
            assert (candidate["text"], candidate["tokens"], candidate["attention"]) == (own.text, own.tokens, weights)
    assert [sentence["candidates"][0]["text"] for sentence in sentences[2:]] == ["", "ж", ""]
    post([scribe.served()], "/api/translate", json={"text": "寺"})
    assert scribe.options == [Options(None, 1, False)]


HTML = bytes(page().body).decode()
(SCRIPT,) = re.findall(r'<script type="module">(.*?)</script>', HTML, re.S)
(STYLE,) = re.findall(r"<style>(.*?)</style>", HTML, re.S)


def test_the_page_asks_nobody_else_and_runs_nothing_else() -> None:
    assert not re.findall(r"(?:src|href)=\"(?!data:|docs|metrics)[^\"]*", HTML)
    assert set(re.findall(r"https?://[\w./]+", HTML)) == {"http://www.w3.org/2000/svg"}  # the name of a format
    assert not re.findall(r"@import|url\(", STYLE)
    assert not re.findall(r"^(?:import|export)\b", SCRIPT, re.M)
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", SCRIPT)
    assert not re.findall(r"\son\w+=\"|\sstyle=\"", HTML)  # the policy would not run them
    policy = dict(part.split(" ", 1) for part in page().headers["Content-Security-Policy"].split("; "))
    for name, body in (("script-src", SCRIPT), ("style-src", STYLE)):
        assert policy[name] == f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'"
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert "unsafe" not in str(policy)


# ---- together, and when it cannot


def test_many_at_once_are_translated_together_and_never_mixed_up() -> None:
    texts, calls, own = TEXT.src[::4], list[int](), line_translator()
    expected = [translation.text for translation in translator().translate(texts)]

    def counted(lines: Any, options: Options, step: Step) -> Any:
        calls.append(len(lines))
        return own(lines, options, step)

    async def question(client: httpx.AsyncClient) -> list[httpx.Response]:
        return await asyncio.gather(*(client.post("/translate", json={"q": text, **JA_EN}) for text in texts))

    limits = Limits(batch_texts=15, collect_ms=60_000)  # a full batch waits for nobody
    answers = ask(create_app([ServedRun("tiny", "ja", "en", 2, counted)], limits), question)
    assert [answer.json()["translatedText"] for answer in answers] == expected
    assert calls == [15, 15]
    assert len(set(expected)) > 15


async def queued(client: httpx.AsyncClient, n: int) -> None:
    """Wait until so many texts do."""
    async with asyncio.timeout(50):
        while f'miyako_queue_texts{{run="scribe"}} {n}.0' not in (await client.get("/metrics")).text:
            await asyncio.sleep(0.01)


def test_too_many_are_told_to_come_back_and_what_takes_too_long_is_given_up(
    scribe: Scribe, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def question(client: httpx.AsyncClient) -> list[httpx.Response]:
        def asked(*texts: str) -> asyncio.Future[httpx.Response]:
            return asyncio.ensure_future(client.post("/translate", json={"q": texts, **JA_EN}))

        with scribe.held_up():
            working = asked("ab")
            assert await asyncio.to_thread(scribe.has_begun.wait, 40)
            waiting = asked(*"abcde")
            await queued(client, 5)
            full = await asked(*"fghijklm")
            await queued(client, 5)  # none of the others
            loop = asyncio.get_running_loop()
            now = loop.time
            monkeypatch.setattr(loop, "time", lambda: now() + LIMITS.timeout_s)
            return [full, await working, await waiting]

    full, *late = ask(create_app([scribe.served()], LIMITS), question)
    assert "try again" in refused(full, 503)
    assert int(full.headers["retry-after"]) >= 1
    assert all("within 60 seconds" in refused(answer, 504) for answer in late)
    assert scribe.calls == [["ab"]]  # the others were not worked on any more


def test_a_fault_of_the_model_and_what_is_not_there_are_one_line(scribe: Scribe) -> None:
    assert "pen" not in refused(post([scribe.served()], json={"q": "!", **JA_EN}), 500)
    for path, status in (("/nowhere", 404), ("/translate", 405)):
        assert refused(get(path, [scribe.served()]), status)


# ---- about the server


def test_freed_memory_is_returned_again_and_again(scribe: Scribe, monkeypatch: pytest.MonkeyPatch) -> None:
    times = list[float]()
    monkeypatch.setattr(api, "_TRIM_S", 0.001)
    monkeypatch.setattr(api, "trim_memory", lambda: times.append(time.monotonic()))

    async def question(_: httpx.AsyncClient) -> None:
        async with asyncio.timeout(50):
            while len(times) < 2:
                await asyncio.sleep(0.01)

    ask(create_app([scribe.served()], LIMITS), question)


def test_the_server_describes_itself(scribe: Scribe) -> None:
    runs = [scribe.served("a"), scribe.served("b"), scribe.served("c", "en", "ja"), scribe.served("d", "ja", "de")]
    assert get("/health", runs).json() == {"status": "ok"}
    assert get("/languages", runs).json() == [
        {"code": "ja", "name": "Japanese", "targets": ["en", "de", "ja"]},
        {"code": "en", "name": "English", "targets": ["ja", "en"]},
        {"code": "de", "name": "German", "targets": ["de"]},
    ]
    assert get("/spec", runs).json() == get("/openapi.json", runs).json()
    assert get("/frontend/settings", runs).json()["language"]["target"] == {"code": "en", "name": "English"}
    told = get("/api/runs", runs[:1]).json()
    assert told["runs"] == [{"name": "a", "source": "ja", "target": "en", "beam": 4, "examples": [], "tags": []}]
    assert (told["max_chars"], told["max_texts"], told["max_beam"]) == (LONGEST, 8, 16)
    assert (answer := get("/", runs)).text == HTML
    assert "content-security-policy" in answer.headers
    text, paths = get("/docs", runs).text, get("/openapi.json", runs).json()["paths"]
    assert all(f" {path}</code>" in text for path in paths)
    assert "<td><code>alternatives</code></td>" in text
    assert "://" not in text  # it requests nothing from the network


def test_all_is_counted(scribe: Scribe) -> None:
    name = 'a"b\\c\nd'

    async def question(client: httpx.AsyncClient) -> str:
        for question in ({"q": "ab", **JA_EN}, {"q": ["cd", "ef"], **JA_EN}, {"q": "!", **JA_EN}, {}):
            await client.post("/translate", json=question)
        for path in ("/any/name", "/another"):
            await client.get(path)
        return (await client.get("/metrics")).text

    families = text_string_to_metric_families(ask(create_app([scribe.served(name)], LIMITS), question))
    samples = [sample for family in families for sample in family.samples]
    counted = {(sample.name, *map(str, sample.labels.values())): sample.value for sample in samples}
    assert [counted["miyako_requests_total", "/translate", status] for status in ("200", "400", "500")] == [2, 1, 1]
    assert counted["miyako_requests_total", "other", "404"] == 2
    assert counted["miyako_request_seconds_count", "/translate"] == 4
    assert counted["miyako_batch_texts_count", name] == 3
    assert counted["miyako_batch_texts_sum", name] == 4
    assert counted["miyako_queue_texts", name] == 0


def connect(url: str, sent: bytes = b"") -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)), 20)
    client.sendall(sent)
    return client


def is_closed(connection: socket.socket) -> bool:
    """Wait for what comes next: the end, or an answer."""
    with suppress(ConnectionResetError):
        return connection.recv(1) == b""
    return True


HALF_HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
HEALTHY = b'{"status":"ok"}'


def test_a_head_is_waited_for_ten_seconds(scribe: Scribe, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of a connection, and the next one; the server's clock stands still, and is put forward."""
    now = time.monotonic() - 20  # less than it will be when the clock goes again
    monkeypatch.setattr(asyncio.BaseEventLoop, "time", lambda _: now)
    with serving([scribe.served()], LIMITS) as url, ExitStack() as stack:
        stack.callback(monkeypatch.undo)  # only then does the server come to its end
        nothing, half, slow, second = (
            stack.enter_context(connect(url, sent)) for sent in (b"", HALF_HEAD, HALF_HEAD, HALF_HEAD + b"\r\n")
        )
        while not second.recv(4096).endswith(HEALTHY):
            pass
        second.sendall(HALF_HEAD)
        assert httpx.get(f"{url}/health").content == HEALTHY  # by now, the half heads are read
        now += 9.9
        assert httpx.get(f"{url}/health").content == HEALTHY  # by now, what is too late is closed
        slow.sendall(b"\r\n")
        assert not is_closed(slow)
        now += 0.2
        assert all(is_closed(connection) for connection in (nothing, half, second))


def test_of_too_many_connections_the_one_that_has_waited_longest_is_closed(
    scribe: Scribe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_MAX_CONNECTIONS", 3)
    monkeypatch.setattr(server, "_HEAD_S", 1000.0)
    with serving([scribe.served()], LIMITS) as url, ExitStack() as stack:
        first, second, third = (stack.enter_context(connect(url, sent)) for sent in (b"", HALF_HEAD, HALF_HEAD))
        assert httpx.get(f"{url}/health").content == HEALTHY  # the fourth takes the place of the first
        assert is_closed(first)
        for waiting in (second, third):
            waiting.sendall(b"\r\n")
            assert not is_closed(waiting)


@pytest.mark.parametrize("pages", [1, 400], ids=["closing", "pipelined"])
def test_who_does_not_read_is_not_waited_for(scribe: Scribe, pages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_ANSWER_S", 0.1)
    closed = threading.Event()

    class Closing(server.Connection):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            closed.set()

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            super().connection_made(transport)

    monkeypatch.setattr(server, "Connection", Closing)
    with serving([scribe.served()], LIMITS) as url, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = url.removeprefix("http://").split(":")
        connection.connect((host, int(port)))
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * pages)
        assert closed.wait(60)
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}


def test_who_hangs_up_is_not_worked_for(scribe: Scribe) -> None:
    """Through a real socket: an abandoned request leaves the queue."""

    async def question(url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:

            async def post(text: str) -> httpx.Response:
                return await client.post("/translate", json={"q": text, **JA_EN})

            with scribe.held_up():
                first = asyncio.ensure_future(post("寺a"))
                assert await asyncio.to_thread(scribe.has_begun.wait, 40)
                leaving = asyncio.ensure_future(post("gone"))
                await queued(client, 1)
                leaving.cancel()
                await queued(client, 0)
            assert (await first).json() == {"translatedText": "a寺"}
            assert (await post("川b")).status_code == 200
            assert 'status="499"' in (await client.get("/metrics")).text

    with serving([scribe.served()], LIMITS) as url:
        asyncio.run(asyncio.wait_for(question(url), 60))
    assert scribe.calls == [["寺a"], ["川b"]]


def half_a_request(url: str) -> socket.socket:
    """A client that has announced more than it sends."""
    head = "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n"
    return connect(url, head.encode() + b'{"q": "ab", ')


def test_a_body_that_does_not_come_is_not_waited_for(scribe: Scribe, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving([scribe.served()], LIMITS) as url, httpx.Client(base_url=url, timeout=60) as client:
        half_a_request(url).close()
        assert eventually(lambda: 'status="499"} 1' in client.get("/metrics").text)
        monkeypatch.setattr(api, "_READING_S", 0.2)
        with half_a_request(url) as other:
            answer = b"".join(iter(lambda: other.recv(4096), b""))  # to the end: the connection is closed
    head, _, body = answer.decode().partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 408 ")
    assert list(json.loads(body)) == ["error"]
    assert scribe.calls == []


def test_what_connections_use_of_uvicorn_is_there() -> None:
    """None of it is documented, so a newer version than the bound is looked at first."""
    bounds = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["poetry"]["group"]["serve"]
    below = bounds["dependencies"]["uvicorn"].split("<")[1]
    assert tuple(map(int, uvicorn.__version__.split(".")[:2])) < tuple(map(int, below.split(".")))
    begun = inspect.getsource(H11Protocol.__init__)
    assert all(
        re.search(rf"\bself\.{name}\b.* = ", begun) for name in ("connections", "cycle", "flow", "loop", "transport")
    )
    assert issubclass(H11Protocol, asyncio.Protocol)
    assert callable(H11Protocol.on_response_complete)


def test_a_run_that_has_stopped_is_told(scribe: Scribe, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stop(_: object) -> None:
        raise RuntimeError("a wheel has broken")

    monkeypatch.setattr(Batcher, "_begin_batches", stop)

    async def question(client: httpx.AsyncClient) -> list[httpx.Response]:
        await asyncio.sleep(0.1)  # until it has broken
        return [await client.get("/health"), await client.post("/translate", json={"q": "寺", **JA_EN})]

    for answer in ask(create_app([scribe.served()], LIMITS), question):
        assert "scribe has stopped" in refused(answer, 503)


def test_a_message_comes_once_in_a_minute_with_how_often_it_would_have() -> None:
    once, passed = server.OncePerMinute(), list[str]()
    for second in (0, 1, 2, 59, 61, 62, 200):
        for message in ("bad", "worse") if second == 0 else ("bad",):
            record = logging.LogRecord("uvicorn.error", logging.WARNING, "", 1, message, None, None)
            record.created = 1000.0 + second
            if once.filter(record):
                passed.append(record.getMessage())
    said = "bad (3 more since the last such line)", "bad (1 more since the last such line)"
    assert passed == ["bad", "worse", *said]


# ---- a socket and signals


def test_an_address_that_cannot_be_had_is_refused() -> None:
    with bind("127.0.0.1", 0) as first:
        taken = first.getsockname()[1]
        for host, port, complaint in (
            ("127.0.0.1", 65536, r"port 65536\b"),
            ("..", 0, "is not a host name: --host"),
            ("192.0.2.1", 8077, r"192.0.2.1, port 8077 \([^()]+\): --host"),
            ("127.0.0.1", taken, rf"port {taken} \([^()]+\): another program uses it"),
        ):
            with pytest.raises(ValueError, match=complaint):
                bind(host, port)


# works on a text when a line of standard input lets it
SERVER = """
from config.search import Limits
from tests.served import Scribe
from utils.command import run_command
from utils.serve.api import create_app
from utils.serve.server import Server, address, bind
from utils.serve.service import ServedRun

def translate(lines, options, step):
    input()
    return Scribe().translate(lines, options, step)

app = create_app([ServedRun("scribe", "ja", "en", 1, translate)], Limits(collect_ms=0, batch_texts=1))
with bind("127.0.0.1", 0) as bound:
    server = Server(app, lambda: print(address(bound), flush=True))
    run_command("serve.py", lambda: server.serve_until_told(bound))
"""


def takes_connections(url: str) -> bool:
    try:
        httpx.get(f"{url}/health", timeout=1)
    except httpx.ConnectError:
        return False
    except httpx.TransportError:
        pass  # it is closing
    return True


def test_the_first_signal_lets_texts_finish_and_takes_nothing_new_and_the_second_ends_it() -> None:
    command, pipe = [sys.executable, "-c", SERVER], subprocess.PIPE
    with (
        subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, bufsize=1) as server,
        ThreadPoolExecutor() as pool,
    ):
        assert server.stdout is not None
        assert server.stdin is not None
        url = server.stdout.readline().strip()
        answers = [
            pool.submit(httpx.post, f"{url}/translate", json={"q": text, **JA_EN}, timeout=60)
            for text in ("ab", "ab", "c")
        ]
        waiting = 'miyako_queue_texts{run="scribe"} 2.0'
        assert eventually(lambda: waiting in httpx.get(f"{url}/metrics", timeout=60).text)
        server.send_signal(signal.SIGINT)
        assert eventually(lambda: not takes_connections(url))
        server.stdin.write("\n\n")
        assert [answer.result().status_code for answer in islice(as_completed(answers), 2)] == [200, 200]
        assert server.poll() is None
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 143


@pytest.mark.parametrize(("steps", "status"), [(True, 0), (False, 143)], ids=["steps", "hangs"])
def test_a_signal_ends_it_in_time_whatever_it_works_on(steps: bool, status: int) -> None:
    """What takes steps is given up, and its client told; what hangs ends with the server."""
    waiting = "while not step(): time.sleep(0.01)" if steps else "time.sleep(1000)"
    program = SERVER.replace("input()", waiting).replace(
        "\ndef translate",
        "import time\nfrom utils.serve import server as own\nown._SHUTDOWN_S, own._LAST_S = 1, 8\n\ndef translate",
        1,
    )
    with (
        subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process,
        ThreadPoolExecutor() as pool,
    ):
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        asked = pool.submit(httpx.post, f"{url}/translate", json={"q": "ab", **JA_EN}, timeout=60)
        begun = 'miyako_batch_texts_count{run="scribe"} 1.0'
        assert eventually(lambda: begun in httpx.get(f"{url}/metrics", timeout=60).text)
        process.send_signal(signal.SIGTERM)
        assert "the server is ending" in refused(asked.result(), 503)
        assert process.wait(60) == status


def test_a_server_that_is_interrupted_says_so_in_the_end(scribe: Scribe) -> None:
    own = Server(create_app([scribe.served()], LIMITS), lambda: own.handle_exit(signal.SIGINT, None))
    with bind("127.0.0.1", 0) as bound, pytest.raises(KeyboardInterrupt):
        own.serve_until_told(bound)


# ---- serve.py, in this process


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A translator, two that translate back, the newer one first; one of another task, and one that is damaged."""
    root = tmp_path_factory.mktemp("pickles")
    there = run(root)
    lower = (Words(language, {}, True, False, False) for language in ("ja", "en"))
    WordPair(*lower).save(there)  # sentences of a run of lower-cased words begin with a capital letter
    config = TranslationConfig.load(there / CONFIG)
    # as a run trained from a TMX file
    config = replace(config, name="back", data=replace(config.data, src_lang="en_US", tgt_lang="JA-JP"))
    pair = TokenizerPair(tokenizers().tgt, tokenizers().src)
    older, newer = (create_run(config, pair, root=root) for _ in range(2))
    for folder in (older, newer):
        write_weights(lively(MODEL, len(pair.src), len(pair.tgt)).state_dict(), folder / WEIGHTS, Rank())
    broken = root / "broken"
    broken.mkdir()
    (broken / WEIGHTS).touch()
    (broken / CONFIG).write_text("task: alchemy\n", encoding="utf-8")
    folders = [there, newer, older, broken, language_run(root)]
    for folder, when in zip(folders, (2_000_000_000, 1_600_000_000, 1_500_000_000, 1_700_000_000, 1), strict=True):
        os.utime(folder / WEIGHTS, (when, when))
    return folders


Command = Callable[..., Outcome]


@pytest.fixture
def served() -> list[tuple[FastAPI, Limits]]:
    """What would have been served."""
    return []


@pytest.fixture
def command(
    runs: list[Path],
    served: list[tuple[FastAPI, Limits]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    class Recorder(NamedTuple):
        app: tuple[FastAPI, Limits]
        on_ready: Callable[[], object]

        def serve_until_told(self, bound: socket.socket) -> None:
            served.append(self.app)
            self.on_ready()
            bound.close()

    def run_it(*arguments: object) -> Outcome:
        ended = outcome("serve.py", serve.main, capsys, *arguments)
        gc.collect()
        return ended

    monkeypatch.setattr(serve, "PICKLES", runs[0].parent)
    monkeypatch.setattr(serve, "find_run", lambda name, root=runs[0].parent: find_run(name, root=root))
    monkeypatch.setattr(server, "Server", Recorder)
    monkeypatch.setattr(api, "create_app", lambda runs, limits, *rest: (create_app(runs, limits, *rest), limits))
    return run_it


def test_examples_are_what_the_last_validation_showed_or_lines_of_the_test_text(tmp_path: Path) -> None:
    assert examples(tmp_path) == []

    def samples(*sources: str) -> list[dict[str, str]]:
        return [{"source": source} for source in sources]

    (tmp_path / "test.json").write_text(json.dumps({"samples": samples("寺" * 5, "寺" * 101, "寺" * 38, "寺" * 90)}))
    assert examples(tmp_path) == ["寺" * 38, "寺" * 5, "寺" * 90]
    records = [
        {"kind": "dev", "step": 1, "samples": samples("橋")},
        {"kind": "dev", "step": 2, "samples": samples("川")},
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert examples(tmp_path) == ["川"]


def test_a_run_without_a_way_back_is_served_alone(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="train one first"):
        serve.default_runs(tmp_path)
    folder = run(tmp_path)
    assert serve.default_runs(tmp_path) == [folder]
    for name in ("kftt_ja_en", "another"):
        shutil.copytree(folder, tmp_path / name)
        os.utime(tmp_path / name / WEIGHTS, (1, 1))
    assert serve.default_runs(tmp_path) == [folder, tmp_path / "kftt_ja_en"]


def test_the_newest_runs_answer_as_translating_with_them_does(
    command: Command, served: list[tuple[FastAPI, Limits]], runs: list[Path]
) -> None:
    limits = Limits(70, 2, 3, 4.5, 6, 7.5)
    options = [word for name, value in asdict(limits).items() for word in (f"--{name}", value)]
    ended = command("--host", "127.0.0.2", "--port", "0", "--device", "cpu", *options)
    assert (ended.status, ended.err) == (0, "")
    names = f"{runs[0].name} (ja→en), {runs[1].name} (en→ja)"
    assert re.fullmatch(rf"http://127.0.0.2:\d+ serves {re.escape(names)}; .*\n", ended.out)
    ((app, own),) = served
    assert own == limits

    async def question(client: httpx.AsyncClient) -> list[str]:
        assert [language["code"] for language in (await client.get("/languages")).json()] == ["ja", "en"]
        questions = ({"q": TEXT.src[2], **JA_EN}, {"q": TEXT.tgt[5], "source": "auto", "target": "ja"})
        return [(await client.post("/translate", json=question)).json()["translatedText"] for question in questions]

    offline = [
        load_run(folder, torch.device("cpu"), plain=True).translator().translate([text])[0].text
        for folder, text in zip(runs[:2], (TEXT.src[2], TEXT.tgt[5]), strict=True)
    ]
    assert offline[0] != load_run(runs[0], torch.device("cpu")).translator().translate([TEXT.src[2]])[0].text
    assert ask(app, question) == offline
    assert all(offline)


def test_a_mistake_is_one_line(command: Command, served: list[tuple[FastAPI, Limits]]) -> None:
    for arguments, said in (
        ("--run nowhere", "no run nowhere"),
        ("--run tiny --run tiny", "two runs are called tiny"),
        ("--queue-texts 9 --max-texts 10", "--queue-texts 9 has no room for the --max-texts 10"),
        ("--precision fp16", "precision=fp16 needs CUDA"),
        ("--max_chars 0", "error: --max-chars 0: give at least 1"),
        ("--cors good.example", "--cors good.example: give the origin of web pages, such as https://example.com"),
        ("--cors=", "--cors '': give the origin"),
        ("--cors https://good.example/", "--cors https://good.example/: give the origin"),
        ("--api-key=", "--api-key '': give the key"),
    ):
        assert said in command("--port", "0", *arguments.split()).complaint
    assert not served


# ---- the benchmark detects wrong answers; speed is not tested


def test_each_fault_is_called_by_its_name() -> None:
    own = Service([served_run()], Limits())
    questions = [Question(text, "ja", "en") for text in TEXT.src[:8]]
    expected = bench.offline(own, questions)

    def checked(said: Sequence[tuple[Question, str | None]], changed: dict[Question, str] | None = None) -> Measurement:
        answers = [Answer(question, text, 0.001 * i) for i, (question, text) in enumerate(said, 1)]
        alone = lambda question: bench.offline(own, [question])[question]  # noqa: E731
        return bench.checked(answers, 2.0, 4, expected | (changed or {}), alone)

    measured = checked(list(expected.items()))
    assert (measured.answers, measured.errors, measured.mixed_up, measured.differing, measured.ties) == (8, 0, 0, 0, 0)
    assert (measured.sentences_per_s, measured.p50_ms, measured.p99_ms) == pytest.approx((4, 4.5, 8))
    first, second, third = questions[:3]
    assert expected[third] != expected[second]
    measured = checked([(first, expected[first]), (second, expected[third]), (second, "nonsense"), (second, None)])
    assert (measured.answers, measured.mixed_up, measured.differing, measured.errors, measured.ties) == (3, 1, 1, 1, 0)
    measured = checked([(second, expected[second])], {second: "what a batch has found"})
    assert (measured.ties, measured.differing, measured.mixed_up) == (1, 0, 0)


@pytest.mark.slow
def test_a_server_in_a_process_of_its_own_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("utils.text.loop.OFTEN", 2)  # as in the server
    folders = [run(tmp_path)]
    own = Service([serve.load_served(folders[0], "cpu", "fp32")], Limits())
    expected = bench.offline(own, [Question(text, "ja", "en") for text in TEXT.src[:40]])
    measuring = bench.Bench(folders, ["--precision", "fp32"], expected, lambda question: expected[question])
    single, many = measuring.measure([1, 4], 0.5)
    for measured in (single, many):
        assert measured.answers > 0
        assert (measured.errors, measured.mixed_up, measured.differing) == (0, 0, 0)
    assert (single.clients, many.clients) == (1, 4)
    assert bench.figures([single, many])["together_x"] == many.sentences_per_s / single.sentences_per_s
    endured, statuses = measuring.endure(30, 4, 1.0, 1)
    assert {name for name, (most, _) in bench.BOUNDS.items() if endured.get(name, 0) > most} <= {"growth"}
    assert all(statuses.values())
