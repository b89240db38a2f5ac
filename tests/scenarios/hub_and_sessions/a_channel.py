"""A channel on stdio: a server through which somebody elsewhere writes to sessions and answers their questions.

`declares` and `permission` among its arguments say what it declares. A session calls `push` to have it send any
notification; what it is told itself is appended to the file that its last argument names.
"""

import json
import sys
from pathlib import Path
from typing import Any

Message = dict[str, Any]
DECLARED = {"channel": "claude/channel", "permission": "claude/channel/permission"}


def send(message: Message) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def answer(message: Message) -> Message:
    match message["method"]:
        case "initialize":
            experimental: Message = {DECLARED[word]: {} for word in sys.argv[1:-1] if word in DECLARED}
            return {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}, "experimental": experimental},
                "serverInfo": {"name": "a-channel", "version": "1"},
            }
        case "tools/list":
            return {"tools": [{"name": "push", "inputSchema": {"type": "object"}}]}
        case "tools/call":
            send(message["params"]["arguments"])
            return {"content": [{"type": "text", "text": "sent"}]}
    return {}


def take(message: Message) -> None:
    method = message.get("method", "")
    if "id" in message:
        send({"id": message["id"], "result": answer(message)})
    elif method.startswith("notifications/claude/"):
        with Path(sys.argv[-1]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(message) + "\n")
        if "answers" in sys.argv:
            reply = {"request_id": message["params"]["request_id"], "behavior": "allow"}
            send({"method": "notifications/claude/channel/permission", "params": reply})


if __name__ == "__main__":
    for line in sys.stdin:
        take(json.loads(line))
