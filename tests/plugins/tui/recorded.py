"""What a server has said once, said again: so that a screen is the same every time.

Stories with a real server are in `test_stories.py`; this is only for what is drawn.
"""

import json
import threading
from collections.abc import Mapping
from typing import Any

from claude_code_mcp.client.connections import CallFailed, McpClient, NotRunning

NOW = 1_794_700_000.0
"""When all screens are drawn."""
SHOP, BILLING, SEARCH, DOCS, OLD = (f"{number}0000000-0000-4000-8000-000000000000" for number in range(1, 6))
EDIT = {
    "file_path": "/src/shop/cart.py",
    "old_string": "    return sum(item.price for item in items)\n",
    "new_string": "    return sum(item.price * item.quantity for item in items)\n",
}
PLAN = "# Move the invoices\n\n1. **Copy** the table `invoices` in batches\n2. Write to both for a week\n3. Switch\n"
CHOICES = [
    {
        "question": "How many mistakes may a word have?",
        "options": [{"label": "one", "description": "fast"}, {"label": "two", "description": "tolerant"}],
    },
    {"question": "Where?", "options": ["titles", "texts"], "multiSelect": True},
]
ANSWER = """## What I found

The **total** ignores quantities:

```python
def total(items):
    return sum(item.price for item in items)
```

| item | price | quantity |
|---|---|---|
| tea | 3 | 2 |

It says 8 and must say *11*. See [the docs](https://example.org/cart).
"""


def listed(session_id: str, title: str, project: str, **more: Any) -> dict[str, Any]:
    return {
        "sessionId": session_id,
        "displayText": title,
        "projectDirectory": f"/src/{project}",
        "timestamp": "2026-11-15T00:20:00.000Z",
        "isActive": "activeStatus" in more,
        **more,
    }


SESSIONS = [
    listed(SHOP, "The cart shows the wrong total. Fix it.", "shop", activeStatus="running", costUsd=0.1234),
    listed(BILLING, "Plan the move of the invoices", "billing", activeStatus="completed", costUsd=1.5),
    listed(DOCS, "Check every link", "docs", activeStatus="error"),
    listed(OLD, "Something from last week", "shop", lastStatus="completed", timestamp="2026-11-08T00:00:00.000Z"),
]


def asking(tool: str, tool_input: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    kind = {"ExitPlanMode": "plan_review", "AskUserQuestion": "user_question"}.get(tool, "permission")
    return {
        "inputId": "q-1",
        "type": kind,
        "toolName": tool,
        "toolInput": tool_input,
        "description": f"{tool} something",
        **more,
    }


PERMISSION = asking("Edit", EDIT, canAllowForSession=True, description="Edit cart.py")
COMMAND = asking("Bash", {"command": "make deploy", "description": "Deploys"}, description="Run: make deploy")
PLAN_REVIEW = asking("ExitPlanMode", {"plan": PLAN}, modes=["default", "acceptEdits"])
USER_QUESTION = asking("AskUserQuestion", {"questions": CHOICES})


def message(role: str, uuid: str, *content: dict[str, Any]) -> dict[str, Any]:
    raw = {"type": role, "uuid": uuid, "message": {"role": role, "content": list(content)}}
    return {"type": "message", "message": raw}


EVENTS: list[dict[str, Any]] = [
    {"type": "turn_started", "turn": 1, "messageId": "m1", "prompt": "The cart shows the wrong total. Fix it."},
    message("assistant", "u1", {"type": "thinking", "thinking": "The prices are right, so it must be the sum."}),
    message("assistant", "u2", {"type": "tool_use", "id": "t1", "name": "Read", "input": {"file_path": "cart.py"}}),
    message("user", "u3", {"type": "tool_result", "tool_use_id": "t1", "content": "1  def total(items):\n2  …"}),
    message("assistant", "u4", {"type": "text", "text": ANSWER}),
    message("assistant", "u5", {"type": "tool_use", "id": "t2", "name": "Edit", "input": EDIT}),
]


def call(number: int, name: str, result: str, tool_input: Mapping[str, Any], **more: Any) -> list[dict[str, Any]]:
    """A call and its result; `details` are those that Claude Code writes beside it."""
    returned = {"type": "tool_result", "tool_use_id": f"w{number}", "content": result, **more}
    details = returned.pop("details", None)
    ended = message("user", f"wr{number}", returned)
    if details is not None:
        ended["message"]["tool_use_result"] = details
    used = {"type": "tool_use", "id": f"w{number}", "name": name, "input": tool_input}
    return [message("assistant", f"wc{number}", used), ended]


PATCH = {
    "structuredPatch": [
        {"oldStart": 1, "oldLines": 2, "newStart": 1, "newLines": 3, "lines": [" a", "-b", "+c", "+d"]},
    ]
}
TESTS = "collected 3 items\n\n\x1b[32mtests/test_cart.py ..F\x1b[0m\n\nE  assert 8 == 11\n1 failed, 2 passed\n"
WORK: list[dict[str, Any]] = [
    {"type": "turn_started", "turn": 1, "messageId": "m1", "prompt": "The cart shows the wrong total. Fix it."},
    *(event for number in range(4) for event in call(number, "Read", "1  x", {"file_path": f"part{number}.py"})),
    *call(4, "Grep", "cart.py:1", {"pattern": "total"}),
    message("assistant", "said", {"type": "text", "text": "It is the sum."}),
    *call(5, "Edit", "The file was updated.", EDIT, details=PATCH),
    *call(6, "Bash", TESTS, {"command": "pytest -q tests", "description": "Run the tests"}),
    *call(7, "Bash", "one\ntwo", {"command": "ls"}),
    *call(8, "Read", "File does not exist.", {"file_path": "gone.py"}, is_error=True),
]
SUMMARY = {
    "status": "running",
    "workingDirectory": "/src/shop",
    "model": "opus",
    "costUsd": 0.1234,
    "inputTokens": 12_345,
    "outputTokens": 678,
    "turnStarted": NOW - 42,
}
COSTS = {
    "by": "day",
    "lines": [
        {"name": "2026-11-14", "usd": 0.5, "inputTokens": 1000, "outputTokens": 200, "sessions": 1},
        {"name": "2026-11-15", "usd": 2.0, "inputTokens": 9000, "outputTokens": 800, "sessions": 3},
    ],
    "total": {"name": "total", "usd": 2.5, "sessions": 4},
}
SERVERS = {
    "servers": [
        {"name": "github", "state": "connected", "type": "http", "scope": "user", "tools": 12},
        {"name": "linear", "state": "needs-auth", "type": "http", "scope": "user", "reason": "sign in first"},
    ]
}

DIFF = """\
 cart.py | 4 ++--
 2 files changed, 3 insertions(+), 2 deletions(-)

diff --git a/cart.py b/cart.py
index 1111111..2222222 100644
--- a/cart.py
+++ b/cart.py
@@ -1,3 +1,3 @@
 def total(items):
-    return sum(item.price for item in items)
+    return sum(item.price * item.quantity for item in items)

--- looks like a head
diff --git a/notes.txt b/notes.txt
new file mode 100644
--- /dev/null
+++ b/notes.txt
@@ -0,0 +1 @@
+remember\x1b[2J
"""


class RecordedServer(McpClient):
    """Answers as a server has that had these sessions and this question."""

    def __init__(self, question: Mapping[str, Any] | None = None, session_id: str = SHOP) -> None:
        self._asks = {session_id: question} if question is not None else {}
        self._ended = threading.Event()
        self.events = list(EVENTS)
        self.items: list[dict[str, Any]] = []
        self.messages: list[str] = []
        self.refusal = ""
        """Why messages are refused; empty: they are taken."""
        self.machines: dict[str, str] = {}
        """Where sessions are, in a fleet."""
        self.moves: list[dict[str, Any]] = []
        self.answers: list[dict[str, Any]] = []

    def take(self, message: str) -> None:
        if self.refusal:
            raise CallFailed(self.refusal)
        self.messages.append(message)

    def close(self) -> None:
        self._ended.set()

    def request(self, method: str, **params: Any) -> dict[str, Any]:
        if method == "resources/read":
            return {"contents": [{"text": json.dumps(self._read(params["uri"]))}]}
        if method == "tools/list":
            schema = {"properties": {"machine": {"type": "string"}}} if self.machines else {}
            return {"tools": [{"name": "claude_create_session", "inputSchema": schema}]}
        return {"structuredContent": self._call(params["name"], params["arguments"])}

    def _read(self, uri: str) -> dict[str, Any]:
        if uri.startswith("claude-sessions:///costs"):
            return COSTS
        if "/turns" in uri:
            return {"items": self.items, "previous": None}
        if "cursor=" in uri and "full=1" in uri:
            self._ended.wait()
            raise NotRunning("it has ended")
        questions = [question["inputId"] for question in self._asks.values()]
        status = "waiting_for_input" if questions else "running"
        summary = {**SUMMARY, "status": status, "questions": questions}
        return {"sessionId": SHOP, "events": self.events, "nextCursor": "a-1", "hasMore": False, "session": summary}

    def _call(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if tool == "claude_list_sessions":
            wanted = [session for session in SESSIONS if "activeStatus" in session or not arguments.get("active")]
            return {"sessions": [self._on_machine(self._with_question(session)) for session in wanted]}
        if tool == "claude_get_status":
            asked = self._asks.get(arguments["sessionId"])
            return {"sessionId": arguments["sessionId"], "pendingInputs": [asked] if asked else [], "nextCursor": "a-1"}
        if tool == "claude_mcp_servers":
            return SERVERS
        if tool == "claude_manage_session" and arguments["action"] == "diff":
            return {"sessionId": arguments["sessionId"], "message": DIFF, "source": "worktree"}
        if tool == "claude_manage_session" and arguments["action"] == "move":
            return self._move(arguments)
        if tool in ("claude_send_message", "claude_respond"):
            if tool == "claude_send_message":
                self.take(arguments["message"])
            else:
                self.answers.append(dict(arguments))
                self._asks.pop(arguments["sessionId"])
            return {"sessionId": arguments["sessionId"]}
        raise CallFailed(f"{tool} was not recorded")

    def _on_machine(self, session: dict[str, Any]) -> dict[str, Any]:
        machine = self.machines.get(session["sessionId"])
        return {**session, "machine": machine} if machine else session

    def _move(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        session_id, machine = arguments["sessionId"], arguments["machine"]
        self.moves.append(dict(arguments))
        if machine not in self.machines.values():
            raise CallFailed(f"machine: {machine!r} is not there.", "INVALID_ARGUMENT")
        if session_id == SHOP and not arguments.get("wait"):
            raise CallFailed("A turn is running.", "SESSION_BUSY")
        self.machines[session_id] = machine
        return {"sessionId": session_id, "message": f"It is on machine {machine} now."}

    def _with_question(self, session: dict[str, Any]) -> dict[str, Any]:
        asked = self._asks.get(session["sessionId"])
        return (
            session
            if asked is None
            else {**session, "activeStatus": "waiting_for_input", "asks": [asked["description"]]}
        )
