"""What every message passes on all transports: a check that it can be written as JSON, and a line in the debug log,
without its contents."""

import logging
from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from pydantic_core import to_json

from ... import json_text

log = logging.getLogger(__name__)


async def checked_results(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Middleware of the SDK's server: a result that JSON cannot represent is mended, or becomes an error."""
    if log.isEnabledFor(logging.DEBUG):
        kind, named = "notification" if ctx.request_id is None else "request", (ctx.params or {}).get("name")
        tool = f" {named[:100]!r}" if isinstance(named, str) else ""
        log.debug("<- client %s %s%s%s", kind, ctx.method, tool, _id(ctx))
    try:
        result = await call_next(ctx)
    except MCPError as error:
        _log_sent(ctx, "error", None)
        if json_text.flaw([error.message, error.data]) is None:
            raise
        raise MCPError(error.code, json_text.sound_text(error.message)) from None
    return result if ctx.request_id is None else _checked(ctx, result)


def _checked(context: ServerRequestContext[Any, Any], result: HandlerResult) -> HandlerResult:
    try:
        size = len(to_json(result))
    except ValueError:
        result = _mended(result)
        size = len(to_json(result))
    _log_sent(context, "result", size)
    return result


def writable(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters of something that is pushed, mended if need be. ValueError if that is not possible."""
    try:
        to_json(params)
        return params
    except ValueError:
        mended: Mapping[str, Any] = json_text.sound(params)
        return mended


def notification_line(method: str, params: Mapping[str, Any]) -> bytes:
    """A notification as JSON without line breaks, mended if need be. ValueError if that is not possible."""
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    try:
        return to_json(message, inf_nan_mode="null")
    except ValueError:
        return json_text.encode(message)


def _mended(result: Any) -> Any:
    try:
        return json_text.sound(result)
    except ValueError as error:
        raise MCPError(types.INTERNAL_ERROR, f"The result cannot be written as JSON: {error}") from None


def sound_line(message: types.JSONRPCMessage) -> bytes:
    """A message as a line. One that JSON cannot represent is mended; an answer that cannot be mended becomes an error
    with its id. ValueError if nothing is left that could be sent."""
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
    except ValueError:
        pass
    try:
        return json_text.encode(message.model_dump(by_alias=True, exclude_unset=True, warnings=False)) + b"\n"
    except ValueError:
        if not isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            raise
    problem = {"code": types.INTERNAL_ERROR, "message": "The result cannot be written as JSON."}
    return json_text.encode({"jsonrpc": "2.0", "id": message.id, "error": problem}) + b"\n"


# -- the log --------------------------------------------------------------------------------------------------


def _log_sent(context: ServerRequestContext[Any, Any], kind: str, size: int | None) -> None:
    if log.isEnabledFor(logging.DEBUG):
        bytes_ = "" if size is None else f" {size} bytes"
        log.debug("-> client %s of %s%s%s", kind, context.method, _id(context), bytes_)


def log_pushed(kind: str, method: str) -> None:
    """A request or notification that the server sends on its own."""
    log.debug("-> client %s %s", kind, method)


def _id(context: ServerRequestContext[Any, Any]) -> str:
    return "" if context.request_id is None else f" id {str(context.request_id)[:100]!r}"
