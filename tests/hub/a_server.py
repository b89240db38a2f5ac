"""A small MCP server on stdio, in plain Python so that many start quickly; its arguments say how it misbehaves, and
what else it has: `tasks`, `logs`."""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

Message = dict[str, Any]
TOOLS = ["echo", "pid", "wait", "progress", "big", "die", "change", "ask", "refuse", "custom"]
_writing = threading.Lock()


def send(message: Message) -> None:
    with _writing:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


class Server:
    def __init__(self, faults: set[str]) -> None:
        self.faults = faults
        self.tools = list(TOOLS)
        self.lists = 0
        self.waiting: Message = {}
        self.asking: Message = {}
        self.reports: list[str] = []
        self.level = "info"
        self.tasks: dict[str, Message] = {}

    def run(self) -> None:
        if "garbage" in self.faults:
            print("Starting up…\n{not json\n\n[1, 2]\n" + "x" * 100_000, flush=True)
        if "mute" in self.faults:
            time.sleep(3600)
        for line in sys.stdin:
            message = json.loads(line)
            if "garbage" in self.faults:
                print("DEBUG: got", line[:40].strip(), flush=True)
            self.take(message)

    def take(self, message: Message) -> None:
        method, id_, params = message.get("method"), message.get("id"), message.get("params", {})
        if method is None:
            self.answered(message)
        elif method == "notifications/cancelled":
            if params["requestId"] == self.waiting.get("id"):
                Path(self.waiting["params"]["arguments"]["note"]).write_text("cancelled")
        elif id_ is not None:
            answer = self.answer(method, params, message)
            if answer is not None:
                send({"id": id_, **answer})

    def answer(self, method: str, params: Message, message: Message) -> Message | None:
        if method == "initialize":
            return self.initialize()
        if method == "tools/list":
            if "brief" in self.faults:  # the hub asks for the list as soon as it is connected
                os._exit(3)
            self.lists += 1
            names = [*self.tools, *(["log", "sample"] if "logs" in self.faults else [])]
            tools = [{"name": name, "description": name, "inputSchema": {"type": "object"}} for name in names]
            if "tasks" in self.faults:
                tools.append({**tools[0], "name": "long", "execution": {"taskSupport": "required"}})
            return {"result": {"tools": tools}}
        if method == "logging/setLevel":
            self.level = params["level"]
            return {"result": {}}
        if method in ("tasks/result", "tasks/cancel") or params.get("name") == "long":
            return self.task(method, params)
        if method == "tools/call":
            return self.call(params["name"], params.get("arguments") or {}, message)
        return {"error": {"code": -32601, "message": "Method not found"}}

    def initialize(self) -> Message | None:
        if "hang" in self.faults:
            for note in (fault.removeprefix("note=") for fault in self.faults if fault.startswith("note=")):
                Path(note, f"{os.getpid()}.greeted").touch()
            return None
        capabilities = {"tools": {"listChanged": True}, "experimental": {"claude/channel": {}}}
        if "tasks" in self.faults:
            capabilities |= {"tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}}
        if "logs" in self.faults:
            capabilities |= {"logging": {}}
        info = {"name": "a-server", "version": "1"}
        return {"result": {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}}

    def call(self, name: str, arguments: Message, message: Message) -> Message | None:
        match name:
            case "echo":
                return text(json.dumps(arguments))
            case "pid":
                return text(f"{os.getpid()} {self.lists}")
            case "big":
                return text("x" * arguments["size"])
            case "wait":
                self.waiting = message
                Path(arguments["note"]).write_text("waiting")
                return None
            case "ask":
                schema = {"type": "object", "properties": {"name": {"type": "string"}}}
                params = arguments.get("params") or {"message": "Your name?", "requestedSchema": schema}
                questions = [f"q{message['id']}", f"r{message['id']}"][: 2 if "ask-twice" in self.faults else 1]
                self.asking |= {question: (message["id"], arguments.get("note")) for question in questions}
                for question in questions:
                    send({"id": question, "method": "elicitation/create", "params": params})
                if "take_back" in arguments:
                    seen = Path(arguments["take_back"])
                    threading.Thread(target=self.take_back, args=(questions, message["id"], seen), daemon=True).start()
                return None
            case "sample":
                asked = {"messages": [{"role": "user", "content": {"type": "text", "text": "2+2?"}}], "maxTokens": 10}
                self.asking[f"q{message['id']}"] = (message["id"], None)
                send({"id": f"q{message['id']}", "method": "sampling/createMessage", "params": asked})
                return None
            case "raw":
                with _writing:
                    sys.stdout.write(arguments["line"].replace("ID", str(message["id"])) + "\n")
                    sys.stdout.flush()
                return None
            case "die":
                print("out of memory, secret-value", file=sys.stderr, flush=True)
                os._exit(7)
            case _:
                return self.tell(name, message)

    def task(self, method: str, params: Message) -> Message | None:
        """`long` runs only as a task: its call tells the task, whose result is that of another request."""
        if method == "tools/call":
            if "task" not in params:
                return {"error": {"code": -32601, "message": "long runs as a task only"}}
            self.tasks["t1"] = params["arguments"]
            times = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z"}
            return {"result": {"task": {"taskId": "t1", "status": "working", "ttl": params["task"]["ttl"], **times}}}
        arguments = self.tasks[params["taskId"]]
        if method == "tasks/cancel":
            Path(arguments["note"]).write_text("cancelled")
            return {"result": {}}
        if "note" in arguments:
            Path(arguments["note"]).write_text("waiting")
            return None
        return text("done as a task")

    def tell(self, name: str, message: Message) -> Message:
        if name == "log":
            for level in ("debug", "info", "error"):
                if level != "debug" or self.level == "debug":
                    data = {"level": level, "logger": "work", "data": f"said at {level}"}
                    send({"method": "notifications/message", "params": data})
        if name == "refuse":
            return {"error": {"code": -32602, "message": "No such thing", "data": {"hint": "try again"}}}
        if name == "progress":
            token = message["params"].get("_meta", {}).get("progressToken")
            for step in (1, 2, 3):
                params = {"progressToken": token, "progress": step, "total": 3, "message": f"step {step}"}
                send({"method": "notifications/progress", "params": params})
        if name == "change":
            self.tools.append(f"new{len(self.tools)}")
            send({"method": "notifications/tools/list_changed"})
        if name == "custom":
            send({"method": "notifications/claude/channel", "params": {"content": "hello"}})
        return text(name)

    def take_back(self, questions: list[str], call: int, seen: Path) -> None:
        """Takes its questions back when that file is there, and answers the call without them."""
        while not seen.exists():
            time.sleep(0.01)
        for question in questions:
            del self.asking[question]
            send({"method": "notifications/cancelled", "params": {"requestId": question, "reason": "never mind"}})
        send({"id": call, **text("taken back")})
        seen.with_suffix(".over").touch()

    def answered(self, message: Message) -> None:
        call, note = self.asking.pop(message["id"], (None, None))
        reports = json.dumps(message.get("result") or message.get("error"))
        if note is not None:
            Path(note).write_text(reports)
        if call is not None:
            self.reports.append(reports)
            if not any(call == other for other, _ in self.asking.values()):
                send({"id": call, **text(" ".join(self.reports))})
                self.reports.clear()


def text(value: str) -> Message:
    return {"result": {"content": [{"type": "text", "text": value}]}}


if __name__ == "__main__":
    Server(set(sys.argv[1:])).run()
