"""A small MCP server on stdio that writes down what it is asked to do, in the file that its argument names."""

import json
import sys
from pathlib import Path
from typing import Any

SECRET = "the secret of the server"


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "initialize":
            offered: dict[str, Any] = {"tools": {}, "resources": {}, "prompts": {}, "completions": {}}
            info = {"name": "recording", "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": offered, "serverInfo": info}
        case "tools/list":
            return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("pay", "look")]}
        case "resources/list":
            return {"resources": [{"uri": "secret://one", "name": "one"}]}
        case "resources/templates/list":
            return {"resourceTemplates": []}
        case "prompts/list":
            return {"prompts": [{"name": "greet"}]}
        case "tools/call":
            return {"content": [{"type": "text", "text": f"{params['name']} done"}]}
        case "resources/read":
            return {"contents": [{"uri": params["uri"], "text": SECRET}]}
        case "prompts/get":
            return {"messages": [{"role": "user", "content": {"type": "text", "text": SECRET}}]}
        case "completion/complete":
            return {"completion": {"values": [SECRET]}}
    return None


def main(record: Path) -> None:
    for line in sys.stdin:
        message = json.loads(line)
        method, id_, params = message.get("method", ""), message.get("id"), message.get("params") or {}
        if method in ("tools/call", "resources/read", "prompts/get", "completion/complete"):
            with record.open("a") as file:
                file.write(
                    json.dumps([method, params.get("name") or params.get("uri"), params.get("arguments")]) + "\n"
                )
        if id_ is not None:
            result = answer(method, params)
            reply = {"result": result} if result is not None else {"error": {"code": -32601, "message": "unknown"}}
            print(json.dumps({"jsonrpc": "2.0", "id": id_, **reply}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
