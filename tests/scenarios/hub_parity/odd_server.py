"""An MCP server on stdio whose answers are unusual: what a client makes of them is compared."""

import json
import os
import sys
from pathlib import Path
from typing import Any

Message = dict[str, Any]
TOOLS = ["echo", "pid", "arguments", "image", "fails", "surrogate", "not_a_number", "wrong_id", "grow", "die", "wait"]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
INSTRUCTIONS = "Always ask the odd server twice."


def send(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def answer(id_: Any, result: Message) -> None:
    send(json.dumps({"jsonrpc": "2.0", "id": id_, "result": result}))


def text(value: str) -> Message:
    return {"content": [{"type": "text", "text": value}]}


def call(id_: Any, name: str, arguments: Message) -> None:
    match name:
        case "pid":
            answer(id_, text(str(os.getpid())))
        case "arguments":
            answer(id_, text(json.dumps(sys.argv[1:])))
        case "image":
            answer(id_, {"content": [{"type": "image", "mimeType": "image/png", "data": PIXEL}]})
        case "fails":
            answer(id_, {**text("It is broken."), "isError": True})
        case "surrogate":
            answer(id_, text("before \ud800 behind"))  # written as an escape, which is JSON
        case "not_a_number":
            answer(id_, {**text("a number"), "structuredContent": {"value": float("nan")}})
        case "wrong_id":
            answer(f"not {id_}", text("for nobody"))
        case "grow":
            TOOLS.append("grown")
            send(json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}))
            answer(id_, text("grown"))
        case "die":
            os._exit(7)
        case "wait":
            Path(arguments["note"]).write_text("begun")  # and is never answered
        case _:
            answer(id_, text(json.dumps(arguments)))


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        id_, params = message.get("id"), message.get("params") or {}
        match message.get("method"):
            case "initialize":
                capabilities = {"tools": {"listChanged": True}}
                info = {"name": "odd", "version": "1"}
                greeting = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
                answer(id_, {**greeting, "instructions": INSTRUCTIONS})
            case "tools/list":
                answer(id_, {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]})
            case "tools/call":
                call(id_, params["name"], params.get("arguments") or {})
            case "notifications/cancelled" if sys.argv[1:]:
                Path(sys.argv[1]).write_text("cancelled")
            case _ if id_ is not None:
                send(json.dumps({"jsonrpc": "2.0", "id": id_, "error": {"code": -32601, "message": "no such method"}}))


if __name__ == "__main__":
    main()
