"""An MCP server on stdio with a handshake that has everything: tools, prompts, resources, completions, subscriptions,
and all that it can ask of its client. Its arguments say how it takes the first message, if that is another than
`initialize`: `ends`, `mute`, `stuck`; and `slow=SECONDS`, how long it takes to start;
`gate=FILE`, without which it does not start."""

import json
import os
import sys
import time
from typing import Any

Message = dict[str, Any]
FAULTS = dict(argument.partition("=")[::2] for argument in sys.argv[1:])
TOOLS = ["echo", "pid", "cwd", "big", "rows", "roots", "form", "address", "address_first", "touch", "die"]
FIELDS = {"echo": {"color": {"enum": ["red", "blue"]}, "dry": {"type": "boolean"}}}
FORM = {
    "type": "object",
    "properties": {
        "first": {"type": "string", "title": "Name"},
        "second": {"type": "string", "title": "Name"},
        "colors": {
            "type": "array",
            "items": {"anyOf": [{"const": "r", "title": "Red, dark"}, {"const": "b", "title": "Blue"}]},
        },
        "size": {"type": "string", "oneOf": [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]},
        "sure": {"type": "boolean"},
        "count": {"type": "integer"},
    },
}
ADDRESS = {"mode": "url", "message": "Sign in.", "url": "https://example.com/sign-in", "elicitationId": "e1"}
QUESTIONS: dict[str, tuple[str, Message]] = {
    "roots": ("roots/list", {}),
    "form": ("elicitation/create", {"message": "Details?", "requestedSchema": FORM}),
    "address": ("elicitation/create", ADDRESS),
}
CAPABILITIES = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "completions": {},
}


class Server:
    def __init__(self) -> None:
        self.followed: list[str] = []
        self.opened = False
        self.calls: dict[str, Any] = {}
        self.prompts = ["greet"]

    def run(self) -> None:
        time.sleep(float(FAULTS.get("slow", 0)))
        while "gate" in FAULTS and not os.path.exists(FAULTS["gate"]):
            time.sleep(0.02)
        greeted = False
        for line in sys.stdin:
            message = json.loads(line)
            if not greeted and message.get("method") != "initialize" and self.misbehave():
                continue
            greeted = True
            self.take(message)

    def misbehave(self) -> bool:
        if "ends" in FAULTS:
            sys.exit(3)
        if "stuck" in FAULTS:
            time.sleep(3600)
        return "mute" in FAULTS

    def take(self, message: Message) -> None:
        method, id_, params = message.get("method"), message.get("id"), message.get("params") or {}
        if method is None:
            self.opened = self.opened or message.get("result", {}).get("action") == "accept"
            answer(self.calls.pop(str(id_)), text(json.dumps(message.get("result") or message.get("error"))))
        elif method == "server/discover":
            send({"id": id_, "error": {"code": -32601, "message": "Method not found"}})
        elif id_ is not None:
            result = self.call(params, id_) if method == "tools/call" else self.result(method, params)
            if result is not None:
                answer(id_, result)

    def result(self, method: str, params: Message) -> Message:
        match method:
            case "initialize":
                info = {"name": "full", "version": "1"}
                return {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "serverInfo": info}
            case "tools/list":
                schemas = {name: {"type": "object", "properties": FIELDS.get(name, {})} for name in TOOLS}
                return {"tools": [{"name": name, "inputSchema": schema} for name, schema in schemas.items()]}
            case "prompts/list":
                arguments = [{"name": "who", "required": True}]
                return {"prompts": [{"name": name, "arguments": arguments} for name in self.prompts]}
            case "prompts/get":
                said = f'Greet {params["arguments"]["who"]}. SCRIPT:["Good day, {params["arguments"]["who"]}!"]'
                return {"messages": [{"role": "user", "content": {"type": "text", "text": said}}]}
            case "resources/list":
                return {"resources": [{"uri": "full://note", "name": "note"}]}
            case "resources/templates/list":
                return {"resourceTemplates": [{"uriTemplate": "full://notes/{name}", "name": "notes"}]}
            case "resources/read":
                return {"contents": [{"uri": params["uri"], "text": f"This is {params['uri']}"}]}
            case "resources/subscribe":
                self.followed.append(params["uri"])
                return {}
            case "completion/complete":
                return {"completion": {"values": [params["argument"]["value"] + "da"]}}
        return {}

    def call(self, params: Message, id_: Any) -> Message | None:
        arguments = params.get("arguments") or {}
        match params["name"]:
            case "pid":
                return text(str(os.getpid()))
            case "cwd":
                return text(os.getcwd())
            case "big":
                return text("a line of text\n" * (arguments["size"] // 15))
            case "rows":
                rows = {"rows": ["x" * 100] * (arguments["size"] // 100)}
                return {**text("short"), "structuredContent": rows}
            case name if name in QUESTIONS:
                self.calls[f"ask-{id_}"] = id_
                method, asked = QUESTIONS[name]
                send({"id": f"ask-{id_}", "method": method, "params": asked})
                return None
            case "address_first":
                if self.opened:
                    return text("signed in")
                self.opened = True
                error = {"code": -32042, "message": "Sign in first.", "data": {"elicitations": [ADDRESS]}}
                send({"id": id_, "error": error})
                return None
            case "touch":
                self.prompts.append("another")
                for kind in ("prompts", "resources"):
                    send({"method": f"notifications/{kind}/list_changed"})
                for uri in self.followed:
                    send({"method": "notifications/resources/updated", "params": {"uri": uri}})
            case "die":
                os._exit(7)
        return text(json.dumps(arguments))


def text(value: str) -> Message:
    return {"content": [{"type": "text", "text": value}]}


def answer(id_: Any, result: Message) -> None:
    send({"id": id_, "result": result})


def send(message: Message) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    Server().run()
