"""The application in this process: requests, answers and refusals."""

import asyncio
import json
import random
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import httpx
import pytest

from tests.tiny import TEXT
from tests.utils.serve.served import Scribe, asking, eventually, interpreter, route, serving, translator
from tests.utils.serve.test_metrics import figures
from utils.serve import api
from utils.serve.api import create_app
from utils.serve.service import Asked, Limits, Route

ResultT = TypeVar("ResultT")
LONGEST = 200
LIMITS = Limits(max_chars=LONGEST, max_texts=8, queue_texts=8, batch_texts=4, timeout_s=20)


def ask(
    routes: list[Route], question: Callable[[httpx.AsyncClient], Awaitable[ResultT]], limits: Limits = LIMITS
) -> ResultT:
    """Return the result of requests to a server of these runs."""

    async def whole() -> ResultT:
        async with asking(create_app(routes, limits)) as client:
            return await question(client)

    return asyncio.run(whole())


def post(routes: list[Route], path: str, limits: Limits = LIMITS, **how: Any) -> httpx.Response:
    return ask(routes, lambda client: client.post(path, **how), limits)


def refused(answer: httpx.Response, status: int) -> str:
    """Return the one-line error of an answer in LibreTranslate's format."""
    assert answer.status_code == status, answer.text
    (error,) = answer.json().values()
    assert list(answer.json()) == ["error"]
    assert isinstance(error, str)
    assert "\n" not in error
    return error


@pytest.fixture
def scribe() -> Scribe:
    return Scribe()


# ---- LibreTranslate's endpoint


def test_a_text_is_translated_as_the_translator_does() -> None:
    text = TEXT.src[3]
    answer = post([route()], "/translate", json={"q": text, "source": "ja", "target": "en"})
    assert answer.status_code == 200
    assert answer.json() == {"translatedText": translator().translate([text])[0].text}


@pytest.mark.parametrize(
    "how",
    [
        {"data": {"q": "寺、川", "source": "ja", "target": "en", "format": "text", "api_key": ""}},
        {
            "content": "q=寺、川&source=ja&target=en".encode(),  # as curl -d sends it
            "headers": {"content-type": "application/x-www-form-urlencoded; charset=utf-8"},
        },
        {"files": {"q": (None, "寺、川"), "source": (None, "ja"), "target": (None, "en")}},
        {"content": json.dumps({"q": "寺、川", "source": "ja", "target": "en"}).encode()},  # of no declared type
        {"json": {"q": "寺、川", "source": "ja", "target": "en", "api_key": "x", "alternatives": "0"}},
    ],
    ids=["urlencoded", "curl", "multipart", "bare", "json"],
)
def test_json_and_forms_say_the_same(scribe: Scribe, how: dict[str, Any]) -> None:
    answer = post([scribe.route()], "/translate", **how)
    assert (answer.status_code, answer.json()) == (200, {"translatedText": "川、寺"})


def test_half_a_character_is_refused_and_spoils_nobodys_answer() -> None:
    head = 'Content-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
    fields = {"q": "\\ud800", "source": "ja", "target": "en"}
    body = "".join(f"--x\r\n{head.format(name, value)}" for name, value in fields.items()) + "--x--\r\n"
    kind = {"content-type": "multipart/form-data; boundary=x; charset=raw_unicode_escape"}
    answer = post([route()], "/translate", content=body.encode(), headers=kind)
    assert (answer.status_code, list(answer.json())) == (400, ["error"])


def test_a_list_of_other_things_is_refused_in_one_short_line(scribe: Scribe) -> None:
    answer = post([scribe.route()], "/translate", json={"q": [1] * 5_000, "source": "ja", "target": "en"})
    assert answer.status_code == 400
    assert len(answer.json()["error"]) < 300
    assert not scribe.calls


def test_a_list_is_answered_with_a_list_in_order(scribe: Scribe) -> None:
    texts = ["ab", "", "cd", "ef"]
    found = post([scribe.route()], "/translate", json={"q": texts, "source": "ja", "target": "en"})
    assert found.json() == {"translatedText": ["ba", "", "dc", "fe"]}
    assert post([scribe.route()], "/translate", json={"q": [], "source": "ja", "target": "en"}).json() == {
        "translatedText": []
    }
    one = post([scribe.route()], "/translate", data={"q": ["ab", "cd"], "source": "ja", "target": "en"})
    assert one.json() == {"translatedText": ["ba", "dc"]}


def test_lines_stay_lines(scribe: Scribe) -> None:
    found = post([scribe.route()], "/translate", json={"q": "ab\r\n\ncd\n", "source": "ja", "target": "en"})
    assert found.json() == {"translatedText": "ba\n\ndc\n"}
    assert scribe.calls == [["ab", "", "cd", ""]]


def test_the_language_is_found_text_by_text(scribe: Scribe) -> None:
    back = Scribe()
    routes = [scribe.route("there"), back.route("back", "en", "ja")]
    question = {"q": ["寺は", "temple", "川は"], "source": "auto", "target": "auto"}
    found = post(routes, "/translate", json=question).json()
    assert found["translatedText"] == ["は寺", "elpmet", "は川"]
    assert [guess["language"] for guess in found["detectedLanguage"]] == ["ja", "en", "ja"]
    assert (scribe.calls, back.calls) == ([["寺は", "川は"]], [["temple"]])
    one = post(routes, "/translate", json=question | {"q": "temple"}).json()
    assert one["detectedLanguage"] == {"language": "en", "confidence": 100.0}


def test_alternatives_are_the_next_best() -> None:
    text = f"{TEXT.src[3]}\n{TEXT.src[50]}"
    found = post([route()], "/translate", json={"q": text, "source": "ja", "target": "en", "alternatives": 2}).json()
    expected = translator(beam=3).translate(text.split("\n"), n_best=3)
    ranked = ["\n".join(line.candidates[rank].text for line in expected) for rank in range(3)]
    assert found == {"translatedText": ranked[0], "alternatives": ranked[1:]}
    several = {"q": [text, "寺"], "source": "ja", "target": "en", "alternatives": 2}
    assert post([route()], "/translate", json=several).json()["alternatives"][0] == ranked[1:]


def test_markup_stays_text(scribe: Scribe) -> None:
    text = "<script>alert(1)</script>&amp;"
    answer = post([scribe.route()], "/translate", json={"q": text, "source": "ja", "target": "en"})
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"translatedText": text[::-1]}


@pytest.mark.parametrize(
    ("how", "complaint"),
    [
        ({"json": {"source": "ja", "target": "en"}}, "q: Field required"),
        ({"json": {"q": 7, "source": "ja", "target": "en"}}, "q.str: "),
        ({"json": {"q": "x", "source": "ja", "target": "fr"}}, "no run translates ja→fr: choose from ja→en"),
        ({"json": {"q": "x", "source": "ja", "target": "en", "format": "html"}}, "format: Input should be 'text'"),
        ({"json": {"q": "x", "source": "ja", "target": "en", "alternatives": 16}}, "alternatives: "),
        ({"json": {"q": "x", "source": "ja", "target": "en", "alternatives": -1}}, "alternatives: "),
        ({"json": ["x"]}, "Input should be an object"),
        ({"content": b"q=x"}, "Invalid JSON: "),
        ({"content": b""}, "Invalid JSON: "),
        ({"content": b"\xff\xfe\xfa"}, "Invalid JSON: "),
        ({"content": b"[" * 2000}, "Invalid JSON: "),
        ({"content": b'{"q": "\\ud800", "source": "ja", "target": "en"}'}, "Invalid JSON: "),
        ({"content": b"q=%ff", "headers": {"content-type": "application/x-www-form-urlencoded"}}, "cannot be read"),
        ({"data": {"q": "x"}}, "source: Field required; target: Field required"),
        ({"files": {"q": ("name", b"x")}}, "Too many files"),
        ({"content": b"x", "headers": {"content-type": "multipart/form-data"}}, ""),
        ({"json": {"q": "x" * (LONGEST + 1), "source": "ja", "target": "en"}}, "201 characters exceed the limit of"),
        ({"json": {"q": ["x" * LONGEST, "y"], "source": "ja", "target": "en"}}, "201 characters exceed the limit of"),
        ({"json": {"q": ["x"] * 9, "source": "ja", "target": "en"}}, "9 lines exceed the limit of 8"),
        ({"json": {"q": "\n" * 8, "source": "ja", "target": "en"}}, "9 lines exceed the limit of 8"),
    ],
)
def test_a_mistake_is_answered_with_one_line(scribe: Scribe, how: dict[str, Any], complaint: str) -> None:
    assert complaint in refused(post([scribe.route()], "/translate", **how), 400)
    assert scribe.calls == []


def test_what_is_just_short_enough_is_translated(scribe: Scribe) -> None:
    for q in ("寺" * LONGEST, ["\U00010000" * 25] * 8):
        answer = post([scribe.route()], "/translate", json={"q": q, "source": "ja", "target": "en"})
        assert answer.json()["translatedText"] == q


def test_a_long_body_is_refused_whether_it_says_so_or_not(scribe: Scribe) -> None:
    body = b" " * (LIMITS.max_bytes + 1)
    n_read = 0

    async def in_parts() -> Any:
        nonlocal n_read
        for i in range(0, 8 * len(body), 1000):
            n_read = i
            yield body[:1000]

    assert "longer than" in refused(post([scribe.route()], "/translate", content=body), 413)
    assert "longer than" in refused(post([scribe.route()], "/translate", content=in_parts()), 413)
    assert n_read < 2 * len(body)
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert "longer than" in refused(post([scribe.route()], "/translate", content=in_parts(), headers=form), 413)
    assert refused(post([scribe.route()], "/translate", content=body[1:]), 400)


def test_the_longest_text_fits_however_it_is_written(scribe: Scribe) -> None:
    limits = Limits(max_chars=5000)
    question = {"q": "\U0001f600" * limits.max_chars, "source": "ja", "target": "en"}
    escaped = json.dumps(question).encode()  # twelve bytes per character, as in a form
    assert len(escaped) > 12 * limits.max_chars
    for answer in (
        post([scribe.route()], "/translate", limits, content=escaped),
        post([scribe.route()], "/translate", limits, data=question),
    ):
        assert answer.json() == {"translatedText": question["q"]}


# ---- the page's endpoint


def test_the_page_is_told_where_the_model_looked() -> None:
    text = f"{TEXT.src[3]}\n\n{TEXT.src[50]}"
    question = {"text": text, "n_best": 3, "attention": True, "beam": 4}
    answer = post([route()], "/api/translate", json=question).json()
    assert (answer["run"], answer["source"], answer["target"]) == ("tiny", "ja", "en")
    expected = interpreter().translate(text.split("\n"), Asked(4, 3, True))
    no_attention: list[Any] = [None]
    for found, line in zip(answer["lines"], expected, strict=True):
        assert found["source_tokens"] == line.source_tokens
        assert found["pieces"] == line.translation.n_pieces
        assert [one["text"] for one in found["candidates"]] == [one.text for one in line.translation.candidates]
        assert [one["tokens"] for one in found["candidates"]] == [one.tokens for one in line.translation.candidates]
        assert [one["attention"] for one in found["candidates"]] == (line.attention or no_attention)
    assert len(answer["lines"][0]["candidates"]) == 3
    assert answer["lines"][1]["candidates"] == [{"text": "", "score": 0.0, "tokens": [], "attention": None}]


def test_without_being_asked_it_is_not_told() -> None:
    answer = post([route()], "/api/translate", json={"text": TEXT.src[3]}).json()
    assert [one["attention"] for one in answer["lines"][0]["candidates"]] == [None]


def test_the_page_chooses_run_direction_and_beam(scribe: Scribe) -> None:
    other = Scribe()
    routes = [scribe.route("one"), other.route("other", "en", "ja")]
    post(routes, "/api/translate", json={"text": "x", "run": "one", "beam": 3, "n_best": 2})
    post(routes, "/api/translate", json={"text": "寺", "source": "en", "target": "ja"})
    assert (scribe.asked, other.asked) == ([Asked(3, 2, False)], [Asked(None, 1, False)])


@pytest.mark.parametrize(
    ("question", "complaint"),
    [
        ({"text": "x", "beem": 3}, "beem: Extra inputs are not permitted"),
        ({"text": "x", "beam": 0}, "beam: "),
        ({"text": "x", "beam": 17}, "beam: "),
        ({"text": "x", "n_best": 0}, "n_best: "),
        ({"text": "x", "beam": 2, "n_best": 3}, "beam=2 is less than n_best=3: give beam=3"),
        ({"text": "x", "run": "none"}, "no run 'none' is served: choose from scribe"),
        ({"text": "x", "source": "ja", "target": "fr"}, "choose from ja→en"),
        ({"text": ["x"]}, "text: "),
    ],
)
def test_a_mistake_of_the_page_is_one_line(scribe: Scribe, question: dict[str, Any], complaint: str) -> None:
    assert complaint in refused(post([scribe.route()], "/api/translate", json=question), 400)


# ---- together


def test_fifty_at_once_are_translated_together_and_never_mixed_up() -> None:
    texts = random.Random(1).sample(TEXT.src, 50)
    expected = [found.text for found in translator().translate(texts)]
    calls: list[int] = []
    own = interpreter()

    def counted(lines: Any, asked: Asked) -> Any:
        calls.append(len(lines))
        return own.translate(lines, asked)

    async def question(client: httpx.AsyncClient) -> list[httpx.Response]:
        posts = (client.post("/translate", json={"q": text, "source": "ja", "target": "en"}) for text in texts)
        return await asyncio.gather(*posts)

    limits = Limits(batch_texts=25, collect_ms=60_000)  # a full batch waits for nobody
    answers = ask([Route("tiny", "ja", "en", 2, counted)], question, limits)
    assert [answer.json()["translatedText"] for answer in answers] == expected
    assert calls == [25, 25]
    assert len(set(expected)) > 25


def test_what_is_asked_otherwise_is_not_mixed_in(scribe: Scribe) -> None:
    async def question(client: httpx.AsyncClient) -> None:
        await asyncio.gather(
            *(client.post("/api/translate", json={"text": f"{beam}", "beam": beam}) for beam in (1, 2, 1, 2))
        )

    ask([scribe.route()], question)
    assert sorted(scribe.calls) == [["1", "1"], ["2", "2"]]


# ---- when it cannot


async def queued(client: httpx.AsyncClient, n: int) -> str:
    """Wait until so many texts do; the page of figures that says so."""
    while f'miyako_queue_texts{{run="scribe"}} {n}' not in (page := (await client.get("/metrics")).text):
        await asyncio.sleep(0.01)
    return page


def test_too_many_are_told_to_come_back(scribe: Scribe) -> None:
    async def question(client: httpx.AsyncClient) -> tuple[httpx.Response, list[httpx.Response]]:
        async def one(q: str | list[str]) -> httpx.Response:
            return await client.post("/translate", json={"q": q, "source": "ja", "target": "en"})

        with scribe.held_up():
            first = asyncio.ensure_future(one("ab"))
            await asyncio.to_thread(scribe.has_begun.wait, 20)
            waiting = asyncio.ensure_future(one([f"{i}" for i in range(8)]))
            await queued(client, 8)
            full = await one("x")
        return full, [await first, await waiting]

    full, answered = ask([scribe.route()], question)
    assert "try again" in refused(full, 503)
    assert int(full.headers["retry-after"]) >= 1
    assert [answer.status_code for answer in answered] == [200, 200]
    assert ["x"] not in scribe.calls


def test_a_request_that_does_not_fit_leaves_nothing_behind(scribe: Scribe) -> None:
    """Its first texts are taken out of the queue when the last finds no room."""

    async def question(client: httpx.AsyncClient) -> httpx.Response:
        async def one(q: list[str]) -> httpx.Response:
            return await client.post("/translate", json={"q": q, "source": "ja", "target": "en"})

        with scribe.held_up():
            first = asyncio.ensure_future(one(["ab"]))
            await asyncio.to_thread(scribe.has_begun.wait, 20)
            waiting = asyncio.ensure_future(one(["a"] * 5))
            await queued(client, 5)
            full = await one(["b"] * 8)
        await asyncio.gather(first, waiting)
        return full

    refused(ask([scribe.route()], question), 503)
    assert [text for call in scribe.calls for text in call] == ["ab", *["a"] * 5]


def test_what_takes_too_long_is_given_up(scribe: Scribe) -> None:
    async def question(client: httpx.AsyncClient) -> list[httpx.Response]:
        with scribe.held_up():
            posts = [client.post("/translate", json={"q": q, "source": "ja", "target": "en"}) for q in "ab"]
            late = await asyncio.gather(*posts)
        return [*late, await client.post("/translate", json={"q": "cd", "source": "ja", "target": "en"})]

    limits = Limits(timeout_s=2, batch_texts=1)
    *late, answered = ask([scribe.route()], question, limits)
    for answer in late:
        assert "within 2 seconds" in refused(answer, 504)
    assert answered.json() == {"translatedText": "dc"}
    assert scribe.calls == [["a"], ["cd"]]  # b was not worked on any more


def test_a_fault_of_the_model_is_told_without_its_secrets(scribe: Scribe) -> None:
    answer = post([scribe.route()], "/translate", json={"q": "!", "source": "ja", "target": "en"})
    assert "pen" not in refused(answer, 500)


def test_what_is_not_there_is_said_in_the_same_shape(scribe: Scribe) -> None:
    async def question(client: httpx.AsyncClient) -> list[httpx.Response]:
        return [await client.get("/nowhere"), await client.get("/translate")]

    nowhere, wrong = ask([scribe.route()], question)
    assert refused(nowhere, 404)
    assert refused(wrong, 405)


# ---- about the server


def get(path: str, routes: list[Route]) -> httpx.Response:
    return ask(routes, lambda client: client.get(path))


def test_languages_are_listed_as_libretranslate_does(scribe: Scribe) -> None:
    routes = [scribe.route("a"), scribe.route("b"), scribe.route("c", "en", "ja"), scribe.route("d", "ja", "de")]
    assert get("/languages", routes).json() == [
        {"code": "ja", "name": "Japanese", "targets": ["en", "de"]},
        {"code": "en", "name": "English", "targets": ["ja"]},
    ]


def test_runs_and_limits_are_listed_for_the_page(scribe: Scribe) -> None:
    found = get("/api/runs", [scribe.route("a")]).json()
    assert found["runs"] == [{"name": "a", "source": "ja", "target": "en", "beam": 4}]
    assert found["max_chars"] == LONGEST


def test_the_page_comes_with_its_policy(scribe: Scribe) -> None:
    answer = get("/", [scribe.route()])
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "script-src 'sha256-" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "<title>都 Miyako</title>" in answer.text


def test_its_health_is_libretranslates(scribe: Scribe) -> None:
    assert get("/health", [scribe.route()]).json() == {"status": "ok"}


def test_the_description_has_both_endpoints_and_needs_no_network(scribe: Scribe) -> None:
    paths = get("/openapi.json", [scribe.route()]).json()["paths"]
    content = paths["/translate"]["post"]["requestBody"]["content"]
    assert set(content) == {"application/json", "application/x-www-form-urlencoded"}
    assert set(content["application/json"]["schema"]["properties"]) >= {"q", "source", "target", "alternatives"}
    assert "/api/translate" in paths
    page = get("/docs", [scribe.route()]).text
    assert all(f" {path}</code>" in page for path in paths)
    assert "<td><code>alternatives</code></td>" in page
    assert "number of alternative translations" in page
    assert "://" not in page  # it requests nothing from the network


def test_all_is_counted(scribe: Scribe) -> None:
    async def question(client: httpx.AsyncClient) -> str:
        for q in ("ab", "cd", "!"):
            await client.post("/translate", json={"q": q, "source": "ja", "target": "en"})
        await client.post("/translate", json={})
        await client.get("/any/name")
        await client.get("/another")
        with scribe.held_up():
            held = [
                asyncio.ensure_future(client.post("/translate", json={"q": "xy", "source": "ja", "target": "en"}))
                for _ in range(1)
            ]
            await asyncio.to_thread(scribe.has_begun.wait, 20)
            held.append(
                asyncio.ensure_future(client.post("/translate", json={"q": "a\nb", "source": "ja", "target": "en"}))
            )
            page = await queued(client, 2)
        await asyncio.gather(*held)
        return page

    found = figures(ask([scribe.route()], question))
    by_status = {
        status: found[f'miyako_requests_total{{path="/translate",status="{status}"}}'] for status in (200, 400, 500)
    }
    assert by_status == {200: 2, 400: 1, 500: 1}
    assert found['miyako_requests_total{path="other",status="404"}'] == 2
    assert found['miyako_request_seconds_count{path="/translate"}'] == 4
    assert found['miyako_batch_texts_count{run="scribe"}'] == 4
    assert found['miyako_queue_texts{run="scribe"}'] == 2


def test_who_hangs_up_is_not_worked_for(scribe: Scribe) -> None:
    """Through a real socket: an abandoned request leaves the queue."""
    with serving([scribe.route()], LIMITS) as url, httpx.Client(base_url=url, timeout=60) as client:
        with scribe.held_up():

            async def hang_up() -> None:
                async with httpx.AsyncClient(base_url=url, timeout=60) as other:
                    first = asyncio.ensure_future(
                        other.post("/translate", json={"q": "ab", "source": "ja", "target": "en"})
                    )
                    await asyncio.to_thread(scribe.has_begun.wait, 20)
                    waiting = asyncio.ensure_future(
                        other.post("/translate", json={"q": "gone", "source": "ja", "target": "en"})
                    )

                    def n_waiting() -> float:
                        return figures(client.get("/metrics").text)['miyako_queue_texts{run="scribe"}']

                    assert await asyncio.to_thread(eventually, lambda: n_waiting() == 1)
                    waiting.cancel()
                    assert await asyncio.to_thread(eventually, lambda: n_waiting() == 0)
                    scribe.may_work.set()
                    assert (await first).json() == {"translatedText": "ba"}

            asyncio.run(hang_up())
        assert client.post("/translate", json={"q": "cd", "source": "ja", "target": "en"}).status_code == 200
        assert 'status="499"' in client.get("/metrics").text
    assert scribe.calls == [["ab"], ["cd"]]


def half_a_request(url: str) -> socket.socket:
    """A client that has announced more than it sends."""
    host, port = url.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)), 20)
    head = "POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n"
    client.sendall(head.encode() + b'{"q": "ab", ')
    return client


def test_a_body_that_does_not_come_is_not_waited_for(scribe: Scribe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_READING_S", 0.2)
    with serving([scribe.route()], LIMITS) as url, half_a_request(url) as client:
        answer = b"".join(iter(lambda: client.recv(4096), b""))  # to the end: the connection is closed
    head, _, body = answer.decode().partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 408 ")
    assert json.loads(body) == {"error": "the request did not arrive in time"}
    assert scribe.calls == []


def test_who_hangs_up_while_asking_is_counted(scribe: Scribe) -> None:
    with serving([scribe.route()], LIMITS) as url, httpx.Client(base_url=url, timeout=60) as client:
        half_a_request(url).close()
        assert eventually(lambda: 'status="499"} 1' in client.get("/metrics").text)
    assert scribe.calls == []
