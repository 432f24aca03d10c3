"""The HTTP endpoints: LibreTranslate's, the page and its own endpoint, documentation, health and metrics."""

import asyncio
import base64
import hashlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import parse_qs

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from const.corpora import VERSION
from utils.command import page_template
from utils.search.translator import Candidate
from utils.serve.service import AUTO, CONTENT_TYPE, MOST_BEAM, Asked, Limits, Line, Route, Service
from utils.text.language import language_name

# The API documentation as a page that, unlike FastAPI's own, loads no scripts from the network.


def documentation(schema: Mapping[str, Any]) -> str:
    """Render an OpenAPI schema as a page: each endpoint with the fields that it takes."""
    return page_template(Path(__file__).with_name("documentation.html")).render(schema=schema)


# The web page: a single file that contacts only the server it came from.

_FILE = Path(__file__).with_name("page.html")


class Page(NamedTuple):
    """The page as sent to a browser."""

    html: str
    headers: dict[str, str]


@cache
def page() -> Page:
    """Return the page, with a policy that lets the browser run only its own script and style."""
    html = _FILE.read_text(encoding="utf-8")
    policy = {
        "default-src": "'none'",
        "script-src": _hashes("script", html),
        "style-src": _hashes("style", html),
        "img-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    headers = {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",  # an old page might not fit an updated server
    }
    return Page(html, headers)


def _hashes(tag: str, html: str) -> str:
    bodies = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.S)
    digests = [base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() for body in bodies]
    return " ".join(f"'sha256-{digest}'" for digest in digests)


# Requests, read from JSON or a form; each error is a single line.

_URLENCODED, _MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
_MOST_FIELDS = 1000
_READING_S = 10.0  # time limit for reading a body of some kilobytes
_FAULTS_SHOWN = 3  # a list may have one per element
_NOBODY_WAITS = 499  # nginx's status for it; appears only in the metrics

ModelT = TypeVar("ModelT", bound=BaseModel)
AnswerT = TypeVar("AnswerT")


class LibreTranslateRequest(BaseModel):
    """A LibreTranslate request; other fields that its clients send, such as api_key, are ignored."""

    q: str | list[str] = Field(description="text or list of texts; each line is translated separately")
    source: str = Field(description="language code of the text, or auto")
    target: str = Field(description="language code to translate into, or auto")
    format: Literal["text"] = Field("text", description="plain text; markup is not supported")
    alternatives: int = Field(0, ge=0, lt=MOST_BEAM, description="number of alternative translations")


class PageRequest(BaseModel):
    """A request of the web page."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(description="text; each line is translated separately")
    run: str | None = Field(None, description="name of a run; default: the first that fits")
    source: str = Field(AUTO, description="language code of the text, or auto")
    target: str = Field(AUTO, description="language code to translate into, or auto")
    beam: int | None = Field(
        None, ge=1, le=MOST_BEAM, description="beam size; 1 is greedy search; default: the run's own"
    )
    n_best: int = Field(1, ge=1, le=MOST_BEAM, description="most translations per line")
    attention: bool = Field(False, description="return attention weights")


class BodyLimit:
    """Middleware that refuses bodies over the limit with status 413, whether or not they announce their length.

    Args:
        app: application to protect.
        max_bytes: most bytes of a body.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, unless its body is too long."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = int(dict(scope["headers"]).get(b"content-length", b"0"))
        n_bytes = 0

        async def counted() -> Message:
            nonlocal n_bytes
            message = await receive()
            n_bytes += len(message.get("body", b""))
            if max(announced, n_bytes) > self._max_bytes:
                raise HTTPException(413, f"the request is longer than {self._max_bytes:,} bytes: send it in parts")
            return message

        await self._app(scope, counted, send)


async def read(request: Request, model: type[ModelT]) -> ModelT:
    """Read and validate the body of a request.

    Raises:
        HTTPException: it is invalid (400), did not arrive in time (408), or the client has gone (499).
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        async with asyncio.timeout(_READING_S):
            if kind == _MULTIPART:
                return model.model_validate(await _multipart(request))
            if kind == _URLENCODED:
                return model.model_validate(_urlencoded(await request.body()))
            return model.model_validate_json(await request.body())
    except TimeoutError:
        raise HTTPException(408, "the request did not arrive in time", {"Connection": "close"}) from None
    except ClientDisconnect:
        raise HTTPException(_NOBODY_WAITS, "the client has gone") from None
    except ValidationError as error:
        raise HTTPException(400, _in_one_line(error)) from None
    except ValueError:
        raise HTTPException(400, "the form cannot be read: send it in UTF-8, or send JSON") from None


async def _multipart(request: Request) -> dict[str, Any]:
    async with request.form(max_files=0, max_fields=_MOST_FIELDS) as form:
        return _fields({name: form.getlist(name) for name in form})


def _urlencoded(body: bytes) -> dict[str, Any]:
    """Parse a form as browsers or `curl -d` send it: UTF-8, with or without escapes."""
    return _fields(parse_qs(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS))


def _fields(given: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return the fields; one that is given several times becomes a list.

    Raises:
        ValueError: a field has a lone surrogate, which some charsets allow but no tokenizer can read.
    """
    for text in (text for name, values in given.items() for text in (name, *values)):
        text.encode()
    return {name: values if len(values) > 1 else values[0] for name, values in given.items()}


def _in_one_line(error: ValidationError) -> str:
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    lines = [
        ": ".join(part for part in (".".join(map(str, fault["loc"])), fault["msg"]) if part)
        for fault in faults[:_FAULTS_SHOWN]
    ]
    return "; ".join(lines + [f"and {len(faults) - _FAULTS_SHOWN} more"] * (len(faults) > _FAULTS_SHOWN))


async def while_awaited(request: Request, answer: Awaitable[AnswerT], seconds: float) -> AnswerT:
    """Await an answer, and cancel it if it takes too long or the client goes away.

    Args:
        request: the request, whose body has been read.
        answer: the answer to wait for.
        seconds: time limit.

    Raises:
        HTTPException: it took too long (504), or the client has gone (499).
    """
    work, gone = asyncio.ensure_future(answer), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((work, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        if gone.done():
            raise HTTPException(_NOBODY_WAITS, "the client has gone")
        raise HTTPException(504, f"no translation within {seconds:g} seconds: send less text, or use a smaller beam")
    finally:
        work.cancel()
        gone.cancel()


# The HTTP endpoints: LibreTranslate's, the page and its own endpoint, health and metrics.

_DIGITS = 4  # digits of a score


class Counted:
    """Middleware that counts every request.

    Args:
        app: application to wrap.
        answered: called with path, status and seconds of each request.
        paths: paths to count separately; the rest count as one, since anybody could fill the memory with names.
    """

    def __init__(self, app: ASGIApp, answered: Callable[[str, int, float], None], paths: Sequence[str]) -> None:
        self._app = app
        self._answered = answered
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request and count it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 500

        async def noting(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._answered(path, status, time.perf_counter() - begin)


def create_app(routes: Sequence[Route], limits: Limits) -> FastAPI:
    """Create the application that serves the given runs.

    Raises:
        ValueError: two runs have the same name.
    """
    service = Service(routes, limits)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service:
            yield

    app = FastAPI(title="Miyako", version=VERSION, docs_url=None, redoc_url=None, lifespan=lifespan)
    _add_endpoints(app, service)
    paths = [path for route in app.routes if (path := getattr(route, "path", None))]
    app.add_middleware(BodyLimit, max_bytes=limits.max_bytes)
    app.add_middleware(Counted, answered=service.metrics.answered, paths=paths)
    app.add_exception_handler(StarletteHTTPException, _refusal)
    app.add_exception_handler(Exception, _failure)
    return app


def _add_endpoints(app: FastAPI, service: Service) -> None:
    limits = service.limits

    @app.get("/", response_class=HTMLResponse)
    async def show_page() -> HTMLResponse:
        """The web page."""
        return HTMLResponse(page().html, headers=page().headers)

    @app.get("/docs", response_class=HTMLResponse)
    async def show_documentation() -> HTMLResponse:
        """This page."""
        return HTMLResponse(documentation(app.openapi()))

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Health check, as in LibreTranslate."""
        return {"status": "ok"}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        """Metrics for Prometheus."""
        return PlainTextResponse(service.metrics.page(service.waiting), media_type=CONTENT_TYPE)

    @app.get("/languages")
    async def languages() -> list[dict[str, Any]]:
        """Source languages with their target languages, as in LibreTranslate."""
        targets: dict[str, list[str]] = {}
        for route in service.routes:
            known = targets.setdefault(route.src_lang, [])
            known += [route.tgt_lang] if route.tgt_lang not in known else []
        return [{"code": code, "name": language_name(code), "targets": known} for code, known in targets.items()]

    @app.get("/api/runs")
    async def runs() -> dict[str, Any]:
        """Runs and limits, for the page."""
        shown = [
            {"name": route.name, "source": route.src_lang, "target": route.tgt_lang, "beam": route.beam}
            for route in service.routes
        ]
        return {"runs": shown, "max_chars": limits.max_chars, "max_texts": limits.max_texts, "max_beam": MOST_BEAM}

    @app.post("/translate", openapi_extra=_takes(LibreTranslateRequest, form=True))
    async def translate(request: Request) -> JSONResponse:
        """Translate a text, or a list of texts, as in LibreTranslate."""
        asked = await read(request, LibreTranslateRequest)
        texts = [asked.q] if isinstance(asked.q, str) else asked.q
        service.refuse_too_much(texts)
        chosen = [service.choose(text, asked.source, asked.target) for text in texts]
        wanted = [(route, text) for (route, _), text in zip(chosen, texts, strict=True)]
        answer = service.translate(wanted, Asked(n_best=1 + asked.alternatives))
        found = [_joined(lines) for lines in await while_awaited(request, answer, limits.timeout_s)]
        fields: dict[str, list[Any]] = {"translatedText": [best for best, *_ in found]}
        if asked.alternatives:
            fields["alternatives"] = [others for _, *others in found]
        if asked.source == AUTO:
            fields["detectedLanguage"] = [detected and detected._asdict() for _, detected in chosen]
        one = isinstance(asked.q, str)
        return JSONResponse({name: values[0] if one else values for name, values in fields.items()})

    @app.post("/api/translate", openapi_extra=_takes(PageRequest))
    async def translate_for_page(request: Request) -> JSONResponse:
        """Translate for the web page: candidates line by line, with attention weights."""
        asked = await read(request, PageRequest)
        if asked.beam is not None and asked.n_best > asked.beam:
            raise StarletteHTTPException(
                400, f"beam={asked.beam} is less than n_best={asked.n_best}: give beam={asked.n_best}"
            )
        service.refuse_too_much([asked.text])
        route, _ = service.choose(asked.text, asked.source, asked.target, asked.run)
        begin = time.perf_counter()
        answer = service.translate([(route, asked.text)], Asked(asked.beam, asked.n_best, asked.attention))
        (lines,) = await while_awaited(request, answer, limits.timeout_s)
        return JSONResponse(
            {
                "run": route.name,
                "source": route.src_lang,
                "target": route.tgt_lang,
                "seconds": round(time.perf_counter() - begin, _DIGITS),
                "lines": [_line_fields(line) for line in lines],
            }
        )


def _joined(lines: Sequence[Line]) -> list[str]:
    """Join lines to texts: the best of each line, then the second best where there is one, and so on."""
    candidates = [line.translation.candidates for line in lines]
    return [
        "\n".join(found[min(rank, len(found) - 1)].text for found in candidates)
        for rank in range(max(map(len, candidates)))
    ]


def _line_fields(line: Line) -> dict[str, Any]:
    translation = line.translation
    return {
        "source_tokens": line.source_tokens,
        "candidates": [
            _candidate_fields(candidate, line.attention[i] if line.attention else None)
            for i, candidate in enumerate(translation.candidates)
        ],
        "pieces": translation.n_pieces,
        "lost_tokens": translation.lost_tokens,
        "unknown": translation.unknown,
        "unknown_tokens": translation.n_unknown,
    }


def _candidate_fields(candidate: Candidate, attention: list[list[float]] | None) -> dict[str, Any]:
    return {
        "text": candidate.text,
        "score": round(candidate.score, _DIGITS),
        "tokens": candidate.tokens,
        "attention": attention,
    }


def _takes(model: type[BaseModel], form: bool = False) -> dict[str, Any]:
    """Describe the body of a request in OpenAPI terms."""
    kinds = ["application/json", *(["application/x-www-form-urlencoded"] if form else [])]
    schema = model.model_json_schema()
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}}


async def _refusal(_: Request, error: Exception) -> Response:
    """Answer an error in LibreTranslate's format."""
    if not isinstance(error, StarletteHTTPException):
        raise error
    return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)


async def _failure(_: Request, error: Exception) -> Response:  # noqa: ARG001 (the server logs it)
    return JSONResponse({"error": "internal server error: see the server's log"}, 500)
