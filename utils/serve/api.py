"""What one request becomes: LibreTranslate's endpoints, the page and its own, documentation, health and metrics."""

import asyncio
import codecs
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qsl

import pydantic_core
from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from config.search import Limits
from const.corpora import VERSION
from const.token import UNK_ID
from utils.command import content_policy, page_template
from utils.memory import trim_memory
from utils.search.markup import Markup
from utils.search.translation import Piece
from utils.serve.server import Gate, Quota
from utils.serve.service import AUTO, MAX_BEAM, Line, Options, ServedRun, Service, Text
from utils.text.language import detect, has_words, language_name

_JSON, _URLENCODED, _MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
_MAX_FIELDS = 1000
_READING_S = 10.0  # time limit for reading a body of some kilobytes
_MAX_FAULTS = 3  # a list may have one per element
_NOBODY_WAITS = 499  # nginx's status for it; appears only in the metrics
_DIGITS = 4  # digits of a score
_TRIM_S = 5.0  # seconds between two times that freed memory is returned

ModelT = TypeVar("ModelT", bound=BaseModel)
AnswerT = TypeVar("AnswerT")
AskedT = TypeVar("AskedT", "LibreTranslateRequest", "DetectRequest", "PageRequest")

_TAG = Field(None, description="kind of the text, by a tag that the run knows; '' for none; default: the run's own")


_API_KEY = Field(None, description="key of the server, where it has one")


class LibreTranslateRequest(BaseModel):
    """A LibreTranslate request; other fields that its clients send are ignored."""

    q: str | list[str] = Field(description="text or list of texts; each line is translated separately")
    source: str = Field(description="language code of the text, or auto")
    target: str = Field(description="language code to translate into, or auto")
    format: Literal["text", "html"] = Field(
        "text", description="html: tags stay; `lost_tags` names those inside sentences for which no place was found"
    )
    alternatives: int = Field(0, ge=0, lt=MAX_BEAM, description="number of alternative translations of plain text")
    tag: str | None = _TAG
    api_key: str | None = _API_KEY


class DetectRequest(BaseModel):
    """A text whose language is asked for."""

    q: str = Field(description="text")
    api_key: str | None = _API_KEY


class PageRequest(BaseModel):
    """A request of the web page."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(description="text; each line is translated separately")
    run: str | None = Field(None, description="name of a run; default: the one that reads the text best")
    source: str = Field(AUTO, description="language code of the text, or auto")
    target: str = Field(AUTO, description="language code to translate into, or auto")
    beam: int | None = Field(
        None, ge=1, le=MAX_BEAM, description="beam size; 1 is greedy search; default: the run's own"
    )
    n_best: int = Field(1, ge=1, le=MAX_BEAM, description="most translations per line")
    attention: bool = Field(False, description="return attention weights")
    tag: str | None = _TAG
    api_key: str | None = _API_KEY


async def read(request: Request, model: type[ModelT]) -> ModelT:
    """Read and validate a request: its body, JSON or a form, and its query; a mistake is answered with one line.

    Clients send null or nothing for what they leave to the server; the body goes before the query.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    part = "form" if media_type in (_MULTIPART, _URLENCODED) else "JSON"
    try:
        async with asyncio.timeout(_READING_S):
            if media_type == _MULTIPART:
                async with request.form(max_files=0, max_fields=_MAX_FIELDS) as form:
                    given = _fields(form.multi_items())
            else:
                body = await request.body()
                if body and media_type not in (_JSON, _URLENCODED, ""):  # aiohttp names a type for a body of nothing
                    raise HTTPException(415, f"{media_type} cannot be read: send {_JSON}, or a form")
                # not by request.form(), which takes the UTF-8 of `curl -d` for Latin-1
                body = body.removeprefix(codecs.BOM_UTF8)
                is_form = media_type == _URLENCODED or not body
                given = _parsed(body.decode()) if is_form else pydantic_core.from_json(body)
        if isinstance(given, dict):
            part = "query"
            given = _parsed(request.url.query) | given
            optional = {name for name, field in model.model_fields.items() if not field.is_required()}
            optional -= {"tag"}  # "" asks for none
            given = {name: value for name, value in given.items() if name not in optional or value not in (None, "")}
        return model.model_validate(given)
    except TimeoutError:
        raise HTTPException(408, "the request did not arrive in time", {"Connection": "close"}) from None
    except ClientDisconnect:
        raise HTTPException(_NOBODY_WAITS, "the client has gone") from None
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False, include_context=False)
        complaints = [_complaint(fault["type"], ".".join(map(str, fault["loc"])), fault["msg"]) for fault in faults]
        if len(complaints) > _MAX_FAULTS:
            complaints[_MAX_FAULTS:] = [f"and {len(complaints) - _MAX_FAULTS} more"]
        raise HTTPException(400, "; ".join(complaints)) from None
    except ValueError as error:
        reason = error if part == "JSON" else "send it in UTF-8, or send JSON"
        raise HTTPException(400, f"the {part} cannot be read: {reason}") from None


def _complaint(fault: str, field: str, message: str) -> str:
    if fault == "missing":
        return f"Invalid request: missing {field} parameter"  # as LibreTranslate says it
    return f"{field}: {message}" if field else message


def _parsed(form: str) -> dict[str, Any]:
    return _fields(parse_qsl(form, keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS))


def _fields(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a form; one that is given several times becomes a list."""
    fields: dict[str, list[Any]] = {}
    for name, value in pairs:
        f"{name}{value}".encode()  # refuses a lone surrogate, which some charsets allow but no tokenizer can read
        fields.setdefault(name, []).append(value)
    return {name: values if len(values) > 1 else values[0] for name, values in fields.items()}


async def while_awaited(request: Request, answer: Awaitable[AnswerT], seconds: float) -> AnswerT:
    """Await an answer, and cancel it if it takes too long (504) or the client goes away (499)."""
    work, gone = asyncio.ensure_future(answer), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((work, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        if gone.done():
            raise HTTPException(_NOBODY_WAITS, "the client has gone")
        raise HTTPException(504, f"no translation within {seconds:g} seconds: send less text, or use a smaller beam")
    except asyncio.CancelledError:  # by the server, which has waited long enough
        raise HTTPException(503, "the server is ending: try again in a moment", {"Retry-After": "10"}) from None
    finally:
        work.cancel()
        gone.cancel()


def page(template: str = "page.html", **values: Any) -> HTMLResponse:
    """Return a page, with a policy that lets the browser run only its own script and style."""
    html = page_template(Path(__file__).with_name(template)).render(values)
    headers = {
        "Content-Security-Policy": f"{content_policy(html)}; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",  # an old page might not fit an updated server
    }
    return HTMLResponse(html, headers=headers)


async def _trim_memory() -> None:
    """Keep the server at the memory that it needs, which takes less than a tenth of a second.

    Without this, one of four runs held 1,759 MB after 1,500 requests, 1,434 of them in use.
    """
    while True:
        await asyncio.sleep(_TRIM_S)
        await asyncio.to_thread(trim_memory)


def create_app(
    runs: Sequence[ServedRun],
    limits: Limits,
    cors: str | None = None,
    api_key: str | None = None,
    n_at_once: int = 1,
) -> FastAPI:
    """Create the application that serves the given runs.

    Args:
        runs: as for `Service`.
        limits: of requests.
        cors: origin of the web pages that may use it, besides its own; `*` for any.
        api_key: what requests must have; none: nothing.
        n_at_once: batches that are worked on at a time.
    """
    service = Service(runs, limits, n_at_once)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for batcher in service.batchers.values():
                await stack.enter_async_context(batcher)
            stack.callback(asyncio.create_task(_trim_memory()).cancel)
            yield

    # docs_url: FastAPI's own documentation loads scripts from the network
    app = FastAPI(title="Miyako", version=VERSION, docs_url=None, redoc_url=None, lifespan=lifespan)
    _add_endpoints(app, service, api_key)
    paths = [path for route in app.routes if (path := getattr(route, "path", None))]
    app.add_middleware(Gate, metrics=service.metrics, paths=paths, max_bytes=limits.max_bytes, cors=cors)
    if cors is not None:
        app.add_middleware(CORSMiddleware, allow_origins=[cors], allow_methods=["GET", "POST"], allow_headers=["*"])

    @app.exception_handler(HTTPException)
    async def refuse(_: Request, error: HTTPException) -> Response:
        return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def fail(_: Request, __: Exception) -> Response:
        return JSONResponse({"error": "internal server error: see the server's log"}, 500)

    return app


def _add_endpoints(app: FastAPI, service: Service, api_key: str | None) -> None:
    limits, shown, quota = service.limits, page(), Quota(service.limits.req_limit)

    async def admitted(request: Request, model: type[AskedT]) -> AskedT:
        """Read a request of a client that may have an answer, or refuse it as LibreTranslate does."""
        quota.spend(_client(request))
        asked = await read(request, model)
        if api_key is not None and not asked.api_key:
            raise HTTPException(400, "Please contact the server operator to get an API key")
        if api_key is not None and not hmac.compare_digest(api_key.encode(), (asked.api_key or "").encode()):
            raise HTTPException(403, "Invalid API key")
        return asked

    @app.get("/", response_class=HTMLResponse)
    async def show_page() -> HTMLResponse:
        """The web page."""
        return shown

    @app.get("/docs", response_class=HTMLResponse)
    async def show_documentation() -> HTMLResponse:
        """This page."""
        return page("documentation.html", schema=app.openapi())

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Health check, as in LibreTranslate; status 503 if a run does not translate any more."""
        service.refuse_dead(service.batchers)
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/languages")
    async def languages() -> list[dict[str, Any]]:
        """Source languages with their target languages, as in LibreTranslate."""
        return [_language(code) | {"targets": service.targets(code)} for code in service.languages]

    @app.post("/detect", openapi_extra=_takes(DetectRequest, _JSON, _URLENCODED))
    async def detect_language(request: Request) -> JSONResponse:
        """Tell by its letters which of the languages a text is in, as in LibreTranslate; none if none fits."""
        detected = detect((await admitted(request, DetectRequest)).q, service.languages)
        return JSONResponse([detected._asdict()] if detected else [])

    app.add_api_route("/spec", app.openapi, description="What /openapi.json says, where LibreTranslate has it.")

    @app.get("/frontend/settings")
    async def frontend_settings() -> dict[str, Any]:
        """Settings for LibreTranslate's clients."""
        first = service.runs[0]
        return {
            "charLimit": limits.max_chars,
            "frontendTimeout": 500,
            "apiKeys": api_key is not None,
            "keyRequired": api_key is not None,
            "suggestions": False,
            "filesTranslation": False,
            "supportedFilesFormat": [],
            "language": {"source": _language(first.src_lang), "target": _language(first.tgt_lang)},
        }

    @app.get("/api/runs")
    async def runs() -> dict[str, Any]:
        """Runs and limits, for the page."""
        served = [
            {
                "name": run.name,
                "source": run.src_lang,
                "target": run.tgt_lang,
                "beam": run.beam,
                "examples": run.examples,
                "tags": run.tags,
            }
            for run in service.runs
        ]
        return {"runs": served, "max_chars": limits.max_chars, "max_texts": limits.max_texts, "max_beam": MAX_BEAM}

    @app.post("/translate", openapi_extra=_takes(LibreTranslateRequest, _JSON, _URLENCODED))
    async def translate(request: Request) -> JSONResponse:
        """Translate a text, or a list of texts, as in LibreTranslate.

        Only where there is something to say, the answer also has `unknown_tokens`, parts of the text that the model
        cannot read, `unknown`, whether a line is left unchanged because all of it is such, `dropped`, addresses on the
        web and of e-mail that the translation lacks, `far`, whether the model is unsure, `loop`, what was
        done as it repeated itself ("searched again" or "cut"), `other_language`, whether the
        text does not look like the language that `source` says, and `lost_tags`.
        """
        asked = await admitted(request, LibreTranslateRequest)
        given = [asked.q] if isinstance(asked.q, str) else asked.q
        is_html = asked.format == "html"
        if is_html and (n := sum(map(len, given))) > limits.max_html:
            raise HTTPException(400, f"{n:,} characters of HTML exceed the limit of {limits.max_html:,}: send less")

        async def translated() -> list[Text]:
            try:  # in a thread: the parser may take a tenth of a second
                texts = await asyncio.to_thread(
                    lambda: [Text(text, Markup(text) if is_html else None) for text in given]
                )
            except ValueError as error:
                raise HTTPException(400, str(error)) from None
            service.refuse_too_much(texts)
            for text in texts:
                text.run, text.detected = service.choose_if_needed(" ".join(text.parts), asked.source, asked.target)
            has_tags = any(part.has_tags for text in texts if text.markup for part in text.markup.texts)
            options = Options(n_best=1 + asked.alternatives, links=has_tags, tag=asked.tag)
            await service.translate(texts, options, _client(request))
            return texts

        texts = await while_awaited(request, translated(), limits.timeout_s)
        translations = [text.translations() for text in texts]
        fields: dict[str, list[Any]] = {"translatedText": [best for best, *_ in translations]}
        if asked.alternatives:
            fields["alternatives"] = [others for _, *others in translations]
        if asked.source.lower() == AUTO:
            fields["detectedLanguage"] = [text.detected and text.detected._asdict() for text in texts]
        remarks = [text.remarks() for text in texts]
        said = {name: [of_text[name] for of_text in remarks] for name in remarks[0]} if remarks else {}
        fields |= {name: values for name, values in said.items() if any(values)}
        is_list = not isinstance(asked.q, str)
        return JSONResponse({name: values if is_list else values[0] for name, values in fields.items()})

    @app.post("/api/translate", openapi_extra=_takes(PageRequest, _JSON))
    async def translate_for_page(request: Request) -> JSONResponse:
        """Translate for the web page: candidates sentence by sentence, with attention weights."""
        asked = await admitted(request, PageRequest)
        if asked.beam is not None and asked.n_best > asked.beam:
            raise HTTPException(400, f"beam={asked.beam} is less than n_best={asked.n_best}: give beam={asked.n_best}")
        text = Text(asked.text)
        service.refuse_too_much([text])
        run, text.detected = service.choose(asked.text, asked.source, asked.target, asked.run)
        text.run = run
        begin = time.perf_counter()
        options = Options(asked.beam, asked.n_best, asked.attention, tag=asked.tag)
        await while_awaited(request, service.translate([text], options, _client(request)), limits.timeout_s)
        seconds = round(time.perf_counter() - begin, _DIGITS)
        fields = {"run": run.name, "source": run.src_lang, "target": run.tgt_lang, "seconds": seconds}
        remarks = {name: remark for name, remark in text.remarks().items() if remark}
        return JSONResponse(fields | {"remarks": remarks, "sentences": list(_sentence_fields(text.lines))})


def _client(request: Request) -> str:
    """Return the address that a request comes from; of a proxy on this machine, the one that it names."""
    return request.client.host if request.client else ""


def _language(code: str) -> dict[str, Any]:
    return {"code": code, "name": language_name(code)}


def _sentence_fields(lines: Sequence[Line]) -> Iterator[dict[str, Any]]:
    """Yield the fields of each sentence; an empty line is one, too, so that translations and gaps make the text."""
    for number, (translation, source_tokens, attention, _) in enumerate(lines, 1):
        pieces = translation.pieces or [Piece("", [], "", translation.candidates)]
        for i, piece in enumerate(pieces):
            is_last = i + 1 == len(pieces)
            yield {
                "source": piece.source,
                "gap": piece.gap + "\n" * (is_last and number < len(lines)),
                "known": bool(piece.ids) or not has_words(piece.source),
                "source_tokens": source_tokens[i] if piece.ids else [],
                "unknown": [place for place, token in enumerate(piece.ids) if token == UNK_ID],
                "candidates": [
                    {
                        "text": candidate.text,
                        "score": round(candidate.score, _DIGITS),
                        "tokens": candidate.tokens,
                        "attention": attention[i][rank] if attention and attention[i] else None,
                    }
                    for rank, candidate in enumerate(piece.candidates)
                ],
            }


def _takes(model: type[BaseModel], *media_types: str) -> dict[str, Any]:
    """Describe the body of a request in OpenAPI terms."""
    schema = model.model_json_schema()
    return {"requestBody": {"required": True, "content": {name: {"schema": schema} for name in media_types}}}
