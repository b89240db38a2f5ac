"""A small MCP server on stdin and stdout for the demo and for tests: it has tickets, and reports its process id.

Run as a script; `-S` and `-I` are fine, since it needs nothing but the standard library.
"""

import json
import os
import sys
from typing import Any

_PROTOCOL = "2025-11-25"
_NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
_TOOLS = [
    {"name": "read_ticket", "description": "What a ticket says.", "inputSchema": _NUMBER},
    {"name": "close_ticket", "description": "Closes a ticket.", "inputSchema": _NUMBER},
]


class TicketServer:
    """Answers one message after another."""

    def __init__(self) -> None:
        self._tickets = {7: "add() in calculator.py subtracts."}

    def answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """The response to a JSON-RPC message; None for a message without one."""
        if "id" not in message or "method" not in message:
            return None
        result = self._result(message["method"], message.get("params") or {})
        if result is None:
            error = {"code": -32601, "message": "Method not found"}
            return {"jsonrpc": "2.0", "id": message["id"], "error": error}
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}

    def _result(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        match method:
            case "initialize":
                info = {"name": "tickets", "version": "1"}
                return {"protocolVersion": _PROTOCOL, "capabilities": {"tools": {}}, "serverInfo": info}
            case "ping":
                return {}
            case "tools/list":
                return {"tools": _TOOLS}
            case "tools/call":
                text = self._call(params.get("name"), (params.get("arguments") or {}).get("number"))
                known = text is not None
                return {"content": [{"type": "text", "text": text or "There is no such ticket."}], "isError": not known}
        return None

    def _call(self, name: object, number: object) -> str | None:
        if not isinstance(number, int) or number not in self._tickets:
            return None
        if name == "read_ticket":
            return f"Ticket {number}: {self._tickets[number]} (process {os.getpid()})"
        del self._tickets[number]
        return f"Ticket {number} is closed. (process {os.getpid()})"


def main() -> None:
    server = TicketServer()
    for line in sys.stdin:
        answer = server.answer(json.loads(line))
        if answer is not None:
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
