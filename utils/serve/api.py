"""The HTTP endpoints: LibreTranslate's, the page and its own endpoint, health and metrics."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from const.version import VERSION
from utils.search.translator import Candidate
from utils.serve.documentation import documentation
from utils.serve.interpreter import Asked, Line
from utils.serve.language import language_name
from utils.serve.metrics import CONTENT_TYPE
from utils.serve.page import page
from utils.serve.request import BodyLimit, LibreTranslateRequest, PageRequest, read, while_awaited
from utils.serve.service import AUTO, MOST_BEAM, Limits, Route, Service

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
    app.add_exception_handler(HTTPException, _refusal)
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
            raise HTTPException(400, f"beam={asked.beam} is less than n_best={asked.n_best}: give beam={asked.n_best}")
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
    if not isinstance(error, HTTPException):
        raise error
    return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)


async def _failure(_: Request, error: Exception) -> Response:  # noqa: ARG001 (the server logs it)
    return JSONResponse({"error": "internal server error: see the server's log"}, 500)
