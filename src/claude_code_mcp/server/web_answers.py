"""Requests and answers of the routes that browsers use: bodies within limits, failures as a status, fixed headers.

Every response has the fixed headers (`ANSWER_HEADERS`) and must not be cached.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ..core import json_text
from ..core.errors import (
    Cancelled,
    ClaudeCodeError,
    ExecutableNotFound,
    InvalidArgument,
    LimitReached,
    PermissionDenied,
    QuestionClosed,
    RateLimited,
    SessionBusy,
    SessionNotFound,
    UpstreamUnavailable,
)
from ..core.model.session_id import is_session_id
from ..core.model.text import cut
from .tools.arguments import Arguments, checked_arguments

log = logging.getLogger(__name__)

OTHER_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""The content security policy for everything except the page: data must never be rendered as a page."""
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}
"""The headers of every response."""
MAX_BODY = 24 << 20
MAX_CONCURRENT = 4 * MAX_BODY
_LATER = {"Retry-After": "5", "Connection": "close"}
_MAX_SILENCE = 30.0
"""Seconds within which the next part of a body must arrive."""
_MAX_MESSAGE = 2000
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
    """A request that is refused before it reaches the service."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """`more` has additional fields for the error."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers or {}
        self.more = more or {}


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer. The value contains no secrets, or only secrets for this person."""
    return Response(
        json_text.encode(value), status, {**ANSWER_HEADERS, **(headers or {})}, media_type="application/json"
    )


def refusal(problem: RequestRefused) -> Response:
    error = {"code": problem.code, "message": problem.message}
    return answer({"error": error, **problem.more}, problem.status, problem.headers)


def failure(error: ClaudeCodeError, clean: Callable[[str], str]) -> Response:
    """The response for an error of the service; `clean` removes secrets from the message."""
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    code = "QUESTION_CLOSED" if isinstance(error, QuestionClosed) else error.code
    problem: dict[str, Any] = {"code": code, "message": cut(clean(error.message), _MAX_MESSAGE)}
    for name in ("field", "closed", "by"):
        if isinstance(error.data.get(name), str):
            problem[name] = clean(error.data[name])
    headers = {"Retry-After": str(error.retry_after)} if isinstance(error, RateLimited) else None
    return answer({"error": problem}, status, headers)


async def guarded(work: Awaitable[Response], clean: Callable[[str], str]) -> Response:
    """The response of a handler, or the one for its failure."""
    try:
        return await work
    except RequestRefused as problem:
        return refusal(problem)
    except ClaudeCodeError as error:
        return failure(error, clean)
    except ClientDisconnect:
        return Response(status_code=400)
    # The client disconnected or the server is stopping: no response is possible, and the task must end.
    except asyncio.CancelledError:
        raise
    except Exception:
        log.exception("a request of the console failed")
        return refusal(RequestRefused(500, "INTERNAL", "Internal error; see the server's log."))


class BodyRoom:
    """Limits the total body size of one person's concurrent requests, from first byte to response. Otherwise hundreds
    of connections, each within its own limit, would use up the shared memory."""

    def __init__(self, most: int = MAX_CONCURRENT) -> None:
        self._most = most
        self._taken: Counter[str] = Counter()

    @contextlib.contextmanager
    def of(self, principal: str, request: Request) -> Iterator[None]:
        """Context in which the body of the request counts toward this person's limit."""
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            if self._taken[principal] + size > self._most:
                raise RequestRefused(
                    429, "LIMIT_REACHED", "Too many large requests at once; try again in a moment.", _LATER
                )
            self._taken[principal] += size
            taken += size

        request.state.take_room = take
        try:
            yield
        finally:
            self._taken[principal] -= taken
            if not self._taken[principal]:
                del self._taken[principal]


async def body_of(request: Request, largest: int = MAX_BODY) -> dict[str, Any]:
    """The JSON object in a request. RequestRefused if it is not valid, too large, finds no room (`BodyRoom`), or does
    not arrive."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise RequestRefused(415, "INVALID_ARGUMENT", "The content type must be application/json.")
    too_large = RequestRefused(413, "INVALID_ARGUMENT", f"A request may have at most {largest:,} bytes.")
    announced = request.headers.get("content-length", "0")
    # Only the first digits: `int` raises another error for a number with thousands of digits.
    if not announced.isascii() or not announced.isdigit() or int(announced[:15]) > largest:
        raise too_large
    parts, size = [], 0
    stream = request.stream()
    take_room = getattr(request.state, "take_room", None)
    while (part := await _next_part(stream)) is not None:
        size += len(part)
        if size > largest:
            raise too_large
        if take_room is not None:
            take_room(len(part))
        parts.append(part)
    try:
        value = json_text.decode(b"".join(parts) or b"{}")
    except (ValueError, UnicodeError):
        raise RequestRefused(400, "INVALID_ARGUMENT", "The request is not valid JSON.") from None
    if not isinstance(value, dict):
        raise RequestRefused(400, "INVALID_ARGUMENT", "The request must be a JSON object.")
    return value


async def _next_part(stream: AsyncIterator[bytes]) -> bytes | None:
    """The next part of a body; None at the end. A sender that pauses too long is disconnected, because the received
    parts occupy memory."""
    try:
        async with asyncio.timeout(_MAX_SILENCE):
            return await anext(stream, None)
    except TimeoutError:
        headers = {"Connection": "close"}
        raise RequestRefused(408, "INVALID_ARGUMENT", "The request was not received completely.", headers) from None


ArgumentsT = TypeVar("ArgumentsT", bound=Arguments)


async def arguments_of(request: Request, model: type[ArgumentsT], largest: int = MAX_BODY) -> ArgumentsT:
    """The JSON object in a request, checked; InvalidArgument names the invalid field."""
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


def session_id_of(request: Request) -> str:
    """The session in the path; SessionNotFound for anything that is not a session id."""
    session_id = str(request.path_params["session"])
    if not is_session_id(session_id):
        raise SessionNotFound("There is no such session.")
    return session_id.lower()


class NoArguments(Arguments):
    """An empty object."""
