"""An MCP server on stdio with one tool, which answers with the trace context of its call."""

import json
import sys
from typing import Any

TOOL = {"name": "look", "description": "Says which trace it is in.", "inputSchema": {"type": "object"}}


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        info = {"name": "traced", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": f"traceparent {params.get('_meta', {}).get('traceparent')}"}]}
    return None


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        continue
    result = result_of(message["method"], message.get("params") or {})
    answer = {"result": result} if result is not None else {"error": {"code": -32601, "message": "Method not found"}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
