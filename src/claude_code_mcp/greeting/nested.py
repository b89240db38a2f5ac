"""The server when it is started inside a session of this server and may not run there: it offers no tools.

Claude Code starts every MCP server that it has registered, so each session would start another copy of us, whose
sessions would do the same. Such a copy knows itself by its environment. It answers as a server without tools, so that
Claude Code has nothing to complain of, and loads neither the server nor a hub.
"""

import os
import sys

from ..processes.environment import MAX_DEPTH, depth

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

_LATEST_HANDSHAKE = "2025-11-25"
_UNKNOWN_METHOD = -32601
_LISTS = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}


def serve_nothing(argv: list[str]) -> int:
    """Serves nothing on stdio until the client leaves; over HTTP it refuses to start. The value is the exit code."""
    nesting = depth(os.environ)
    sys.stderr.write(
        f"claude-code-mcp: started inside a session of claude-code-mcp (depth {nesting}): it offers no tools there. "
        f"{MAX_DEPTH}={nesting} for the outermost server allows it.\n"
    )
    if any(argument.startswith("--ht") for argument in argv):
        return 2
    try:
        for answer in _answers(sys.stdin.buffer):
            sys.stdout.buffer.write(answer)
            sys.stdout.buffer.flush()
    except KeyboardInterrupt:
        return 130
    except (BrokenPipeError, ConnectionError):
        pass
    return 0


def _answers(lines: "Iterable[bytes]") -> "Iterable[bytes]":
    import json  # noqa: PLC0415 - the usual start does not come here

    for line in lines:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(message, dict) and "method" in message and isinstance(message.get("id"), int | str):
            yield json.dumps({"jsonrpc": "2.0", "id": message["id"], **_answer(message)}).encode() + b"\n"


def _answer(message: "Mapping[str, Any]") -> "dict[str, Any]":
    method, params = message["method"], message.get("params")
    if method == "initialize":
        return {"result": _initialize_result(params)}
    if method == "ping":
        return {"result": {}}
    if method in _LISTS:
        return {"result": {_LISTS[method]: []}}
    # `server/discover` too: clients of the newest protocol then begin with the handshake.
    return {"error": {"code": _UNKNOWN_METHOD, "message": "This server offers nothing inside its own sessions."}}


def _initialize_result(params: object) -> "dict[str, Any]":
    from .. import __version__  # noqa: PLC0415

    requested = params.get("protocolVersion") if isinstance(params, dict) else None
    known = isinstance(requested, str) and "2024-11-05" <= requested <= _LATEST_HANDSHAKE
    return {
        "protocolVersion": requested if known else _LATEST_HANDSHAKE,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "claude-code-mcp", "version": __version__},
        "instructions": "Offers no tools: it runs inside a session that another claude-code-mcp has started.",
    }
