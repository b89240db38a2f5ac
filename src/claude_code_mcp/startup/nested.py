"""The start inside a session: a server that offers nothing.

Claude Code starts every MCP server that it has registered, so each session would start another copy of us, whose
sessions would do the same. Such a copy detects this by its environment. It answers as a server without tools, so that
Claude Code reports no error, and loads neither the server nor a hub.
"""

import json
import os
import sys
from typing import Any

from .. import __version__
from ..core.processes.environment import MAX_DEPTH, depth

_LATEST_HANDSHAKE = "2025-11-25"
_UNKNOWN_METHOD = -32601
_LISTS = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}


def serve_nothing(argv: list[str]) -> int:
    """Offers nothing on stdio until the client disconnects; refuses to start over HTTP. Returns the exit code."""
    nesting = depth(os.environ)
    sys.stderr.write(
        f"claude-code-mcp: started inside a claude-code-mcp session (depth {nesting}), where it offers no tools. To "
        f"allow it, set {MAX_DEPTH}={nesting} for the outermost server.\n"
    )
    if any(argument.startswith("--ht") for argument in argv):
        return 2
    try:
        for line in sys.stdin.buffer:
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(message, dict) and "method" in message and isinstance(message.get("id"), int | str):
                answer = {"jsonrpc": "2.0", "id": message["id"], **_answer(message["method"], message.get("params"))}
                sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
                sys.stdout.buffer.flush()
    except KeyboardInterrupt:
        return 130
    except (BrokenPipeError, ConnectionError):
        pass
    return 0


def _answer(method: str, params: object) -> dict[str, Any]:
    if method == "initialize":
        requested = params.get("protocolVersion") if isinstance(params, dict) else None
        known = isinstance(requested, str) and "2024-11-05" <= requested <= _LATEST_HANDSHAKE
        return {
            "result": {
                "protocolVersion": requested if known else _LATEST_HANDSHAKE,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "claude-code-mcp", "version": __version__},
                "instructions": "Offers no tools: it runs inside a session of another claude-code-mcp server.",
            }
        }
    if method == "ping":
        return {"result": {}}
    if method in _LISTS:
        return {"result": {_LISTS[method]: []}}
    # `server/discover` too: clients of the newest protocol then begin with the handshake.
    return {"error": {"code": _UNKNOWN_METHOD, "message": "This server offers no tools inside its own sessions."}}
