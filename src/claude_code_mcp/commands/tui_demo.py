"""`tui --demo`: several sessions of real Claude Code on a scripted model, working, asking and planning.

Each works in a project of its own, whose `CLAUDE.md` holds what the model says: so that prompts look as prompts do.
Everything lives in one temporary directory, which is removed at the end, and on a server that ends with it.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..client.connections import start_server
from ..client.live_sessions import LiveSessions
from ..shared.client import McpClient
from ..testing import Sandbox, ScriptedModelThread
from ..testing.script import MARKER, Step, ask_user, parallel, plan, question, script, text, thinking, tool

_MORE: tuple[Step, ...] = ("This model follows a script, and the script has ended. Try another session: F3.",) * 40
_CART = "def total(items):\n    return sum(item.price for item in items)\n\n\ndef empty(cart):\n    cart.clear()\n"


@dataclass(frozen=True)
class Project:
    """A directory with a session in it."""

    name: str
    prompt: str
    steps: tuple[Step, ...]
    options: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


def projects() -> list[Project]:
    """What a newcomer sees: a permission with a diff, a plan, a question, a finished session, and one at work."""
    answer = (
        "## What I found\n\nThe **total** ignores quantities:\n\n"
        "```python\ndef total(items):\n    return sum(item.price for item in items)\n```\n\n"
        "| item | price | quantity |\n|---|---|---|\n| tea | 3 | 2 |\n| cup | 5 | 1 |\n\n"
        "It says 8 and must say 11. I will multiply.\n"
    )
    edit = tool(
        "Edit",
        file_path="${cwd}/cart.py",
        old_string="    return sum(item.price for item in items)\n",
        new_string="    return sum(item.price * item.quantity for item in items)\n",
    )
    slow = "".join(f"{number}. Chapter {number} is read and its links are checked.\n" for number in range(1, 200))
    return [
        Project(
            "docs",
            "Check every link in the documentation.",
            (text(slow, chunks=400, interval=0.4), "All links work.", *_MORE),
            files={"README.md": "# Docs\n"},
        ),
        Project(
            "search",
            "Make the search tolerate typing mistakes.",
            (
                ask_user(
                    question("How many mistakes may a word have?", "one", "two", header="Distance"),
                    question("Where?", "titles", "texts", "tags", header="Fields", multiple=True),
                ),
                "Thank you. I will build it like that.",
                *_MORE,
            ),
        ),
        Project(
            "billing",
            "Plan the move of the invoices to the new database.",
            (
                plan(
                    "# Move the invoices\n\n1. **Copy** the table `invoices` in batches of 10,000\n"
                    "2. Write to both for a week\n3. Compare, then switch the reads\n\n> Nothing is deleted.\n"
                ),
                "The plan is approved; I begin with the copy.",
                *_MORE,
            ),
            {"permissionMode": "plan"},
        ),
        Project(
            "shop",
            "The cart shows the wrong total. Fix it.",
            (
                parallel(
                    thinking("The prices are right, so it must be the sum.", "I look at the cart first."),
                    tool("Read", file_path="${cwd}/cart.py"),
                ),
                parallel(text(answer, chunks=30, interval=0.02), edit),
                "Fixed: the total multiplies price and quantity.",
                *_MORE,
            ),
            files={"cart.py": _CART},
        ),
    ]


@contextmanager
def demo_server(executable: str | None = None) -> Iterator[tuple["DemoServer", LiveSessions]]:
    """A server with the sessions of the demo, and a client of it."""
    with (
        tempfile.TemporaryDirectory(prefix="claude-code-mcp-tui-", ignore_cleanup_errors=True) as directory,
        ScriptedModelThread() as model,
    ):
        sandbox = Sandbox(Path(directory), model.url)
        more = {"CLAUDE_CODE_PATH": executable} if executable else {}
        server = DemoServer(sandbox, sandbox.environment(LOG_LEVEL="error", **more))
        with server.open() as client:
            yield server, LiveSessions(client)


class DemoServer:
    """The server of the sandbox, which ends with its one client."""

    def __init__(self, sandbox: Sandbox, environment: dict[str, str]) -> None:
        self.sandbox = sandbox
        self._environment = environment
        self._client: McpClient | None = None

    def open(self) -> McpClient:
        """The client, the first time with a server that is started for it."""
        self._client = self._client or start_server([], self._environment)
        return self._client

    def start_sessions(self, sessions: LiveSessions) -> dict[str, str]:
        """Begins all sessions; their ids by the names of their projects."""
        return {project.name: self._start(sessions, project) for project in projects()}

    def _start(self, sessions: LiveSessions, project: Project) -> str:
        place = self.sandbox.project / project.name
        place.mkdir()
        for name, content in project.files.items():
            (place / name).write_text(content, encoding="utf-8")
        rules = script("What the model of this demo says:", *project.steps)
        assert MARKER in rules
        (place / "CLAUDE.md").write_text(rules, encoding="utf-8")
        made = sessions.create(project.prompt, workingDirectory=str(place), **project.options)
        return str(made["sessionId"])
