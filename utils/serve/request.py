"""Requests, read from JSON or a form; each error is a single line."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qs

from fastapi import HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from utils.serve.service import AUTO, MOST_BEAM

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
