"""`demo`: a tour of the product on the scripted model, printed as it happens; and the sessions of `tui --demo`.

A real MCP client starts this server over stdio and drives real Claude Code sessions. No account is needed. All files
are in one temporary directory, which is removed at the end. Without a Claude Code executable nothing is started, and a
refused tool call ends the demo; both are reported in one line on stderr.

Each session of `tui --demo` works in a separate project, whose `CLAUDE.md` contains the model's answers, so that
prompts look like real prompts; their server ends with its only client.
"""

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..client.connections import McpClient, start_server
from ..client.live_sessions import LiveSessions
from ..core.claude.executable import find_executable
from ..core.config import TOOLSETS, Settings, load_settings
from ..core.errors import ProcessFailed
from ..core.installation import PACKAGE
from ..core.settings_section import variable_of
from ..testing import Sandbox, ScriptedModel, ScriptedModelThread, ticket_server
from ..testing.script import MARKER, Step, ask_user, parallel, plan, question, script, text, thinking, tool

if TYPE_CHECKING:  # the MCP SDK is loaded by the demo itself: every other command would pay for it too
    import mcp_types as types
    from mcp import Client
    from mcp.client.session import ClientRequestContext

_CALCULATOR = "def add(a, b):\n    return a - b\n"
_WAIT = {"waitSeconds": 30}
_MORE_WAITS = 9
"""On a busy machine."""
_MAX_ARGUMENT = 60


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="see it work without an account: real Claude Code sessions on a scripted model",
        description="Starts the server as an MCP client would and runs real Claude Code sessions on a scripted model "
        "in a temporary directory. You see an edit approved, a question answered, a plan reviewed, a turn interrupted, "
        "and an MCP server shared by two sessions. It needs no account and costs nothing.",
    )
    parser.set_defaults(run=_run)


def _run(_: argparse.Namespace) -> int:
    executable = find_executable(load_settings().claude_path)  # refused now, in one line, instead of in the second step
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="claude-code-mcp-demo-") as directory:
        try:
            asyncio.run(_run_tour(Path(directory), executable))
        # Reports the failure that ended the demo, without the exception groups around it.
        except BaseExceptionGroup as group:  # from the task groups of the client
            error: BaseException = group.subgroup(ProcessFailed) or group
            while isinstance(error, BaseExceptionGroup) and error is not group:
                error = error.exceptions[0]
            raise error from None
    print(f"\nThe demo took {time.monotonic() - started:.1f} s and removed everything it created.")
    print(f"\nNext, with your own account:\n{_next_steps()}")
    return 0


def _next_steps() -> str:
    """The commands to type next, with the program as this terminal finds it."""
    program = PACKAGE if shutil.which(PACKAGE) else os.path.relpath(sys.argv[0])
    return (
        f"  {program} claude auth login           log in to Claude Code, or set ANTHROPIC_API_KEY\n"
        f"  {program} config CLIENT --install     add the server to your MCP client\n"
        f"  {program} run 'Fix the failing test'  or start a session from the shell"
    )


async def _run_tour(directory: Path, executable: str) -> None:
    """Start the scripted model and the server in a new directory, connect to it, and run every step."""
    from mcp import Client  # noqa: PLC0415
    from mcp.client.stdio import StdioServerParameters, stdio_client  # noqa: PLC0415

    async with ScriptedModel() as model:
        sandbox = Sandbox(directory, model.url)
        (sandbox.project / "calculator.py").write_text(_CALCULATOR, encoding="utf-8")
        hub_file = directory / "mcp.json"
        tickets = {"command": sys.executable, "args": ["-I", "-S", ticket_server.__file__]}
        hub_file.write_text(json.dumps({"mcpServers": {"tickets": tickets}}), encoding="utf-8")
        settings = {
            "LOG_LEVEL": "error",
            "CLAUDE_CODE_PATH": executable,
            variable_of("hub_file", Settings): str(hub_file),
            variable_of("toolsets", Settings): ",".join((*TOOLSETS, "hub")),
        }
        command = StdioServerParameters(
            command=sys.executable,
            args=["-m", "claude_code_mcp"],
            env=sandbox.environment(**settings),
            cwd=str(sandbox.project),
        )
        async with Client(stdio_client(command), elicitation_callback=_answer_dialog) as client:
            await _Tour(client, sandbox.project).run()


async def _answer_dialog(context: "ClientRequestContext", params: "types.ElicitRequestParams") -> "types.ElicitResult":
    """Stand in for the person at the client: answer Claude's question, and close every other dialog, which stays
    open."""
    import mcp_types as types  # noqa: PLC0415

    properties = params.requested_schema["properties"] if isinstance(params, types.ElicitRequestFormParams) else {}
    if "answer1" not in properties:
        return types.ElicitResult(action="cancel")
    choice = properties["answer1"]["enum"][1]
    _print(f"   dialog   {params.message.splitlines()[1]} -> the person picks {choice!r}")
    return types.ElicitResult(action="accept", content={"answer1": choice})


class _Tour:
    """The steps, in order. Each prints its call and the result."""

    def __init__(self, client: "Client", project: Path) -> None:
        self._client = client
        self._project = project

    async def run(self) -> None:
        listing = await self._client.list_tools()
        _print_step("The client has started the server and sees its tools")
        _print("   " + ", ".join(tool.name for tool in listing.tools))
        session_id = await self._approve_an_edit()
        await self._answer_a_question(session_id)
        await self._review_a_plan()
        await self._interrupt_and_resume(session_id)
        await self._list_sessions()
        await self._show_hub()

    async def _approve_an_edit(self) -> str:
        _print_step("A session reads a ticket through the hub, fixes the bug and asks before it edits")
        file = str(self._project / "calculator.py")
        edit = tool("Edit", file_path=file, old_string="a - b", new_string="a + b")
        steps = (tool("mcp__tickets__read_ticket", number=7), tool("Read", file_path=file), edit)
        prompt = script("Fix ticket 7.", *steps, text("Fixed: add() adds now.\n", chunks=5))
        report = await self._call("claude_create_session", prompt=prompt, allowedTools=["mcp__tickets"], **_WAIT)
        question = _open_question(report)
        _print_output(report)
        _print(f"   waiting  {question['type']}: {question['description']}")
        answer = {"inputId": question["inputId"], "decision": "allow"}
        report = await self._call("claude_respond", sessionId=report["sessionId"], **answer, **_WAIT)
        _print_report(report)
        _print("   file     " + repr((self._project / "calculator.py").read_text(encoding="utf-8")))
        return str(report["sessionId"])

    async def _answer_a_question(self, session_id: str) -> None:
        _print_step("The same session asks a question; it appears as a dialog in the client")
        ask = ask_user("Which test framework?", "unittest", "pytest")
        message = script("Now add a test.", ask, text("I will use what you picked.\n"))
        _print_report(await self._call("claude_send_message", sessionId=session_id, message=message, **_WAIT))

    async def _review_a_plan(self) -> None:
        _print_step("A second session plans first; the plan is sent back once, then approved; the ticket is closed")
        file = str(self._project / "NOTES.md")
        plans = (plan("# Write notes\n1. One file"), plan("# Write notes\n1. One file\n2. With a date"))
        steps = (tool("Write", file_path=file, content="# Notes\n"), tool("mcp__tickets__close_ticket", number=7))
        prompt = script("Plan the notes.", *plans, *steps, "Written, and the ticket is closed.")
        options = {"permissionMode": "plan", "allowedTools": ["mcp__tickets"]}
        report = await self._call("claude_create_session", prompt=prompt, **options, **_WAIT)
        decisions = [{"decision": "deny", "reason": "Add a date."}, {"decision": "allow"}]
        while report["status"] == "waiting_for_input":
            question = _open_question(report)
            answer = decisions.pop(0) if question["type"] == "plan_review" else {"decision": "allow"}
            _print(f"   waiting  {question['type']}: {question['description']} -> {answer}")
            identity = {"sessionId": report["sessionId"], "inputId": question["inputId"]}
            report = await self._call("claude_respond", **identity, **answer, **_WAIT)
        _print_report(report)
        _print(f"   file     {(self._project / 'NOTES.md').read_text(encoding='utf-8')!r}")

    async def _interrupt_and_resume(self, session_id: str) -> None:
        _print_step("A turn takes too long: it is interrupted, and the session continues")
        message = script("Count slowly.", text("one\ntwo\nthree\nfour\n", chunks=4, interval=5))
        await self._call("claude_send_message", sessionId=session_id, message=message)
        report = await self._call("claude_get_status", sessionId=session_id, waitSeconds=1.5)
        _print(f"   status   {report['status']}, so far: {report['recentOutput'][-1:]}")
        report = await self._call("claude_interrupt", sessionId=session_id)
        _print(f"   status   {report['status']}")
        message = script("Never mind, just say done.", "done")
        _print_report(await self._call("claude_send_message", sessionId=session_id, message=message, **_WAIT))

    async def _list_sessions(self) -> None:
        _print_step("Every session on this machine, newest first")
        report = await self._call("claude_list_sessions")
        for session in report["sessions"]:
            status = session.get("activeStatus", "-")
            _print(f"   {session['sessionId']}  {status:10} {_shortened(session['displayText'])[:40]!r}")

    async def _show_hub(self) -> None:
        _print_step("Both sessions used one process of the ticket server, through the hub")
        report = await self._call("claude_mcp_servers", action="list")
        for server in report["servers"]:
            _print(f"   {server['name']}: {server['state']}, {server['tools']} tools")

    async def _call(self, name: str, **arguments: Any) -> dict[str, Any]:
        shown = json.dumps({key: _shortened(value) for key, value in arguments.items()}, ensure_ascii=False)
        _print(f"-> {name} {shown}")
        result = await self._client.call_tool(name, arguments)
        if result.is_error or result.structured_content is None:
            texts = " ".join(block.text for block in result.content if block.type == "text")
            raise ProcessFailed(f"The demo failed: {' '.join(texts.split())}")
        report = dict(result.structured_content)
        for _ in range(_MORE_WAITS if arguments.get("waitSeconds") == _WAIT["waitSeconds"] else 0):
            if report.get("status") == "running":
                status = await self._client.call_tool("claude_get_status", {"sessionId": report["sessionId"], **_WAIT})
                report |= status.structured_content or {}
        return report


def _open_question(report: dict[str, Any]) -> dict[str, Any]:
    """The only question of a session; ProcessFailed if it has none, for example because Claude Code did not start."""
    questions: list[dict[str, Any]] = report.get("pendingInputs") or []
    if len(questions) != 1:
        reason = (report.get("error") or {}).get("message", "it has no open question.")
        raise ProcessFailed(f"The demo failed: the session is in state {report['status']}: {reason}")
    return questions[0]


def _print_output(report: dict[str, Any]) -> None:
    for line in report["recentOutput"]:
        _print(f"   output   {line}")


def _print_report(report: dict[str, Any]) -> None:
    _print_output(report)
    _print(f"<- {report['status']}, ${report['costUsd']:.4f} so far")


def _shortened(argument: Any) -> Any:
    """A prompt without its script, which is for the scripted model and not for the reader."""
    if not isinstance(argument, str):
        return argument
    prompt = argument.split(" SCRIPT:")[0]
    return prompt if len(prompt) <= _MAX_ARGUMENT else prompt[: _MAX_ARGUMENT - 1] + "…"


def _print_step(title: str) -> None:
    _print(f"\n{title}")


def _print(line: str) -> None:
    """Print a line and flush it, even into a pipe: a demo is watched while it runs."""
    print(line, flush=True)


# -- tui --demo --------------------------------------------------------------------------------------------------------


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
    """The projects of the demo: a permission with a diff, a plan, a question, a finished session, and a working one."""
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
    """Context with a server for the demo's sessions, and a client of it."""
    with (
        # Processes of the sessions may still write while it is removed; that must not end the demo with an error.
        tempfile.TemporaryDirectory(prefix="claude-code-mcp-tui-", ignore_cleanup_errors=True) as directory,
        ScriptedModelThread() as model,
    ):
        sandbox = Sandbox(Path(directory), model.url)
        more = {"CLAUDE_CODE_PATH": executable} if executable else {}
        server = DemoServer(sandbox, sandbox.environment(LOG_LEVEL="error", **more))
        with server.open() as client:
            yield server, LiveSessions(client)


class DemoServer:
    """The server of the sandbox, which ends with its only client."""

    def __init__(self, sandbox: Sandbox, environment: dict[str, str]) -> None:
        self.sandbox = sandbox
        self._environment = environment
        self._client: McpClient | None = None

    def open(self) -> McpClient:
        """The client; the first call starts its server."""
        self._client = self._client or start_server([], self._environment)
        return self._client

    def start_sessions(self, sessions: LiveSessions, *, without: str = "") -> dict[str, str]:
        """Start the sessions of all projects except `without`, whose files are only created; return their ids by
        project name."""
        places = {project.name: self._lay_out(project) for project in projects()}
        return {
            project.name: str(
                sessions.create(project.prompt, workingDirectory=str(places[project.name]), **project.options)[
                    "sessionId"
                ]
            )
            for project in projects()
            if project.name != without
        }

    def _lay_out(self, project: Project) -> Path:
        """Create the directory of a project, with its files and the script for the model."""
        place = self.sandbox.project / project.name
        place.mkdir()
        for name, content in project.files.items():
            (place / name).write_text(content, encoding="utf-8")
        rules = script("What the model of this demo says:", *project.steps)
        assert MARKER in rules
        (place / "CLAUDE.md").write_text(rules, encoding="utf-8")
        return place
