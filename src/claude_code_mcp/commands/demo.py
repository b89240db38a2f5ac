"""`demo`: a tour of the product on the scripted model, printed as it happens.

A real MCP client starts this server over stdio and drives real Claude Code sessions. No account is needed. Everything
lives in one temporary directory, which is removed at the end. Without a Claude Code executable nothing is started;
a tool call that is refused ends the demo. Both are one line on stderr and the exit code 2.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..claude.executable import find_executable
from ..config import TOOLSETS, load_settings, variable_of
from ..errors import ProcessFailed
from ..testing import Sandbox, ScriptedModel, ticket_server
from ..testing.script import ask_user, plan, script, text, tool

if TYPE_CHECKING:  # the MCP SDK is loaded by the demo itself: every other command would pay for it too
    import mcp_types as types
    from mcp import Client
    from mcp.client.session import ClientRequestContext

_CALCULATOR = "def add(a, b):\n    return a - b\n"
_WAIT = {"waitSeconds": 30}
_LONGEST_ARGUMENT = 60


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="see it work, with no account: a real MCP client drives real Claude Code on a scripted model",
        description="Starts the server over stdio as a client would, and lets real Claude Code sessions run on a "
        "scripted model in a temporary project: an edit is approved, a question answered, a plan reviewed, a turn "
        "interrupted and resumed, and an MCP server used by several sessions through the hub.",
    )
    parser.set_defaults(run=_run)


def _run(_: argparse.Namespace) -> int:
    executable = find_executable(load_settings().claude_path)  # refused now, in one line, and not in the second step
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="claude-code-mcp-demo-") as directory:
        try:
            asyncio.run(_run_tour(Path(directory), executable))
        # A person is told the one failure that ended the demo, and not the groups that it has passed through.
        except BaseExceptionGroup as group:  # from the task groups of the client
            failed = group.subgroup(ProcessFailed)
            raise _first(failed) if failed is not None else group from None
    print(f"\nThat was everything, in {time.monotonic() - started:.1f} s. Nothing was left behind.")
    return 0


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _run_tour(directory: Path, executable: str) -> None:
    """Starts the scripted model and the server in a fresh directory, connects to it, and runs every step."""
    from mcp import Client  # noqa: PLC0415
    from mcp.client.stdio import StdioServerParameters, stdio_client  # noqa: PLC0415

    async with ScriptedModel() as model:
        sandbox = Sandbox(directory, model.url)
        (sandbox.project / "calculator.py").write_text(_CALCULATOR, encoding="utf-8")
        hub_file = directory / "mcp.json"
        hub_file.write_text(json.dumps({"mcpServers": {"tickets": _ticket_server()}}), encoding="utf-8")
        settings = {
            "LOG_LEVEL": "error",
            "CLAUDE_CODE_PATH": executable,
            variable_of("hub_file"): str(hub_file),
            variable_of("toolsets"): ",".join((*TOOLSETS, "hub")),
        }
        command = StdioServerParameters(
            command=sys.executable,
            args=["-m", "claude_code_mcp"],
            env=sandbox.environment(**settings),
            cwd=str(sandbox.project),
        )
        async with Client(stdio_client(command), elicitation_callback=_answer_dialog) as client:
            await _Tour(client, sandbox.project).run()


def _ticket_server() -> dict[str, Any]:
    """The entry of an MCP server that the hub shares among the sessions."""
    return {"command": sys.executable, "args": ["-I", "-S", str(Path(ticket_server.__file__))]}


async def _answer_dialog(context: "ClientRequestContext", params: "types.ElicitRequestParams") -> "types.ElicitResult":
    """The person at the client: answers Claude's question, and closes every other dialog, which leaves it pending."""
    import mcp_types as types  # noqa: PLC0415

    properties = params.requested_schema["properties"] if isinstance(params, types.ElicitRequestFormParams) else {}
    if "answer1" not in properties:
        return types.ElicitResult(action="cancel")
    choice = properties["answer1"]["enum"][1]
    _print(f"   dialog   {params.message.splitlines()[1]} -> the person picks {choice!r}")
    return types.ElicitResult(action="accept", content={"answer1": choice})


class _Tour:
    """The steps, in order. Each prints what it calls and what comes back."""

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
        await self._look_at_the_hub()

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
        _print_step("A turn takes too long: it is interrupted, and the session goes on")
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
            _print(f"   {session['sessionId']}  {status:10} {session['displayText'][:40]!r}")

    async def _look_at_the_hub(self) -> None:
        _print_step("Both sessions used one process of the ticket server, through the hub")
        report = await self._call("claude_mcp_servers", action="list")
        for server in report["servers"]:
            _print(f"   {server['name']}: {server['state']}, {server['tools']} tools")

    async def _call(self, name: str, **arguments: Any) -> dict[str, Any]:
        shown = json.dumps({key: _shortened(value) for key, value in arguments.items()}, ensure_ascii=False)
        _print(f"-> {name} {shown}")
        result = await self._client.call_tool(name, arguments)
        if result.is_error or result.structured_content is None:
            raise ProcessFailed(f"The demo failed: {_text_of(result)}")
        return dict(result.structured_content)


def _text_of(result: "types.CallToolResult") -> str:
    texts = (block.text for block in result.content if block.type == "text")
    return " ".join(" ".join(texts).split())


def _open_question(report: dict[str, Any]) -> dict[str, Any]:
    """The one question of a session; ProcessFailed if it has none, as when Claude Code did not start."""
    questions: list[dict[str, Any]] = report.get("pendingInputs") or []
    if len(questions) != 1:
        reason = (report.get("error") or {}).get("message", "it asks nothing.")
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
    return prompt if len(prompt) <= _LONGEST_ARGUMENT else prompt[: _LONGEST_ARGUMENT - 1] + "…"


def _print_step(title: str) -> None:
    _print(f"\n{title}")


def _print(line: str) -> None:
    """At once, also into a pipe: a demo is watched while it runs."""
    print(line, flush=True)
