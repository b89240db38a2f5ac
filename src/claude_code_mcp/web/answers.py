"""Requests and answers of the console: JSON bodies read within limits, failures as a status with a code and a sentence.

Every answer has the headers of `page.py`, and nothing of it is to be kept by anybody on the way.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from .. import json_text
from ..errors import (
    Cancelled,
    ClaudeCodeError,
    ExecutableNotFound,
    InvalidArgument,
    LimitReached,
    PermissionDenied,
    QuestionClosed,
    SessionBusy,
    SessionNotFound,
    UpstreamUnavailable,
)
from ..model.text import cut
from ..server.tools.base import Arguments, checked_arguments
from .page import HEADERS, OTHER_POLICY

log = logging.getLogger(__name__)

LARGEST_BODY = 24 << 20
_LONGEST_SILENCE = 30.0
"""Seconds within which a part of a body must come."""
_LONGEST_MESSAGE = 2000
_STATUS: tuple[tuple[type[ClaudeCodeError], int], ...] = (
    (QuestionClosed, 409),
    (InvalidArgument, 400),
    (SessionNotFound, 404),
    (SessionBusy, 409),
    (Cancelled, 409),
    (PermissionDenied, 403),
    (LimitReached, 429),
    (UpstreamUnavailable, 503),
    (ExecutableNotFound, 503),
)
ANSWER_HEADERS = {**HEADERS, "Content-Security-Policy": OTHER_POLICY, "Cache-Control": "no-store"}


class RequestRefused(Exception):
    """A request that is refused before anything of the service is asked."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """`more` is said beside the error."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers or {}
        self.more = more or {}


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer. The value has no secrets in it, or is one that this person is to have."""
    return Response(
        json_text.encode(value), status, {**ANSWER_HEADERS, **(headers or {})}, media_type="application/json"
    )


def refusal(problem: RequestRefused) -> Response:
    error = {"code": problem.code, "message": problem.message}
    return answer({"error": error, **problem.more}, problem.status, problem.headers)


def failure(error: ClaudeCodeError, clean: Callable[[str], str]) -> Response:
    """What the service refused; `clean` takes secrets out of the sentence."""
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    code = "QUESTION_CLOSED" if isinstance(error, QuestionClosed) else error.code
    problem: dict[str, Any] = {"code": code, "message": cut(clean(error.message), _LONGEST_MESSAGE)}
    for name in ("field", "closed", "by"):
        if isinstance(error.data.get(name), str):
            problem[name] = clean(error.data[name])
    return answer({"error": problem}, status)


async def guarded(work: Awaitable[Response], clean: Callable[[str], str]) -> Response:
    """The answer of a handler, or that for its failure."""
    try:
        return await work
    except RequestRefused as problem:
        return refusal(problem)
    except ClaudeCodeError as error:
        return failure(error, clean)
    except ClientDisconnect:
        return Response(status_code=400)
    except asyncio.CancelledError:
        raise
    except Exception:
        log.exception("a request of the console failed")
        return refusal(RequestRefused(500, "INTERNAL", "Something went wrong in the server; its log says what."))


async def body_of(request: Request, largest: int = LARGEST_BODY) -> dict[str, Any]:
    """The JSON object in a request. RequestRefused for one that is none, is too large, or does not come."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise RequestRefused(415, "INVALID_ARGUMENT", "The content type must be application/json.")
    too_large = RequestRefused(413, "INVALID_ARGUMENT", f"A request may have {largest:,} bytes at most.")
    announced = request.headers.get("content-length", "0")
    if not announced.isascii() or not announced.isdigit() or int(announced[:15]) > largest:
        raise too_large
    parts, size = [], 0
    stream = request.stream()
    while (part := await _next_part(stream)) is not None:
        size += len(part)
        if size > largest:
            raise too_large
        parts.append(part)
    try:
        value = json_text.decode(b"".join(parts) or b"{}")
    except (ValueError, UnicodeError):
        raise RequestRefused(400, "INVALID_ARGUMENT", "The request is no JSON.") from None
    if not isinstance(value, dict):
        raise RequestRefused(400, "INVALID_ARGUMENT", "The request must be a JSON object.")
    return value


async def _next_part(stream: AsyncIterator[bytes]) -> bytes | None:
    """None at the end. A sender that falls silent is given up: it would hold what it has sent for ever."""
    try:
        async with asyncio.timeout(_LONGEST_SILENCE):
            return await anext(stream, None)
    except TimeoutError:
        headers = {"Connection": "close"}
        raise RequestRefused(408, "INVALID_ARGUMENT", "The rest of the request did not come.", headers) from None


ArgumentsT = TypeVar("ArgumentsT", bound=Arguments)


async def arguments_of(request: Request, model: type[ArgumentsT], largest: int = LARGEST_BODY) -> ArgumentsT:
    """The JSON object in a request, checked; InvalidArgument names the field that does not fit."""
    return checked_arguments(model, await body_of(request, largest))


def number_of(request: Request, name: str, default: int | None, least: int, most: int) -> int | None:
    """A whole number in the query."""
    text = request.query_params.get(name)
    if text is None or text == "":
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 15 or not least <= int(text) <= most:
        raise InvalidArgument(f"{name}: must be a number from {least} to {most}.", field=name)
    return int(text)


def text_of(request: Request, name: str, longest: int = 1000) -> str | None:
    """A text in the query; None if it is empty."""
    text = request.query_params.get(name) or None
    if text is not None and (len(text) > longest or "\0" in text):
        raise InvalidArgument(f"{name}: must have at most {longest} characters.", field=name)
    return text


def flag_of(request: Request, name: str) -> bool:
    return request.query_params.get(name, "") in ("1", "true")
