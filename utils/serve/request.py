"""What may be asked, read from JSON or a form; every mistake is one line."""

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
_READING_S = 10.0  # for a body of some kilobytes
_FAULTS_SHOWN = 3  # a list has one for each of its elements
_NOBODY_WAITS = 499  # nginx's number for it; seen in the metrics alone

ModelT = TypeVar("ModelT", bound=BaseModel)
AnswerT = TypeVar("AnswerT")


class LibreTranslateRequest(BaseModel):
    """LibreTranslate's request; what else its clients send, such as api_key, is passed over."""

    q: str | list[str] = Field(description="a text, or several; lines are translated one by one")
    source: str = Field(description="code of its language, or auto")
    target: str = Field(description="code of the language to translate into, or auto")
    format: Literal["text"] = Field("text", description="markup is not understood")
    alternatives: int = Field(0, ge=0, lt=MOST_BEAM, description="how many other translations to give")


class PageRequest(BaseModel):
    """What the page asks."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(description="lines are translated one by one")
    run: str | None = Field(None, description="name of a run; without one, the first that fits")
    source: str = Field(AUTO, description="code of the text's language, or auto")
    target: str = Field(AUTO, description="code of the language to translate into, or auto")
    beam: int | None = Field(None, ge=1, le=MOST_BEAM, description="1 is greedy; without it, as the run has it")
    n_best: int = Field(1, ge=1, le=MOST_BEAM, description="most translations of each line")
    attention: bool = Field(False, description="tell where the model looked")


class BodyLimit:
    """Middleware: bodies longer than so many bytes are refused, 413, whether they say so beforehand or not.

    Args:
        app: what is protected.
        max_bytes: the limit.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, unless the body is too long."""
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
    """The body of a request, checked.

    Raises:
        HTTPException: it is not what is asked for, 400; or did not come in time, 408.
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
        raise HTTPException(408, "the request did not come in time", {"Connection": "close"}) from None
    except ClientDisconnect:
        raise HTTPException(_NOBODY_WAITS, "nobody waits for an answer") from None
    except ValidationError as error:
        raise HTTPException(400, _in_one_line(error)) from None
    except ValueError:
        raise HTTPException(400, "the form cannot be read: send it in UTF-8, or send JSON") from None


async def _multipart(request: Request) -> dict[str, Any]:
    async with request.form(max_files=0, max_fields=_MOST_FIELDS) as form:
        return _fields({name: form.getlist(name) for name in form})


def _urlencoded(body: bytes) -> dict[str, Any]:
    """As browsers write it, or as `curl -d` does: UTF-8 in escapes or not."""
    return _fields(parse_qs(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS))


def _fields(given: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """A field that is given several times is a list.

    Raises:
        ValueError: one has half of a character, as some charsets allow and no tokenizer reads.
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
    """The answer, unless it takes too long or the client goes away, which ends the work on it.

    Args:
        request: whose body has been read.
        answer: what is worked on.
        seconds: most that it may take.

    Raises:
        HTTPException: it took too long, 504; or nobody waits for it.
    """
    work, gone = asyncio.ensure_future(answer), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((work, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        if gone.done():
            raise HTTPException(_NOBODY_WAITS, "nobody waits for an answer")
        raise HTTPException(504, f"no translation within {seconds:g} seconds: send less at once, or a narrower beam")
    finally:
        work.cancel()
        gone.cancel()
