"""`demo`: the whole story on the scripted model, told as it happens. Needs no account and leaves nothing behind."""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.client.stdio import StdioServerParameters, stdio_client

from ..testing import Sandbox, ScriptedModel
from ..testing.script import ask_user, plan, script, text, tool


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="see it work, with no account: a real MCP client drives real Claude Code on a scripted model",
        description="Starts the server over stdio as a client would, and lets real Claude Code sessions run on a "
        "scripted model in a temporary project: an edit is approved, a question answered, a plan reviewed, a turn "
        "interrupted and resumed.",
    )
    parser.set_defaults(run=_run)


def _run(_: argparse.Namespace) -> int:

    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="claude-code-mcp-demo-") as directory:
        asyncio.run(tell(Path(directory)))
    print(f"\nThat was everything, in {time.monotonic() - started:.1f} s. Nothing was left behind.")
    return 0


_CALCULATOR = "def add(a, b):\n    return a - b\n"


async def tell(directory: Path) -> None:
    """Tells it in a fresh directory."""
    async with ScriptedModel() as model:
        sandbox = Sandbox(directory, model.url)
        (sandbox.project / "calculator.py").write_text(_CALCULATOR, encoding="utf-8")
        command = StdioServerParameters(
            command=sys.executable,
            args=["-m", "claude_code_mcp"],
            env=sandbox.environment(LOG_LEVEL="error"),
            cwd=str(sandbox.project),
        )
        async with Client(stdio_client(command), elicitation_callback=_dialog) as client:
            await Story(client, sandbox.project).tell()


async def _dialog(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
    """The person at the client: answers Claude's question, and leaves everything else to the queue."""
    properties = params.requested_schema["properties"] if isinstance(params, types.ElicitRequestFormParams) else {}
    if "answer1" not in properties:
        return types.ElicitResult(action="cancel")
    choice = properties["answer1"]["enum"][1]
    _say(f"   dialog   {params.message.splitlines()[1]} -> the person picks {choice!r}")
    return types.ElicitResult(action="accept", content={"answer1": choice})


class Story:
    """The steps, in order. Each prints what it called and what came back."""

    def __init__(self, client: Client, project: Path) -> None:
        self._client = client
        self._project = project

    async def tell(self) -> None:
        tools = await self._client.list_tools()
        _step("The client has started the server and sees its tools")
        _say("   " + ", ".join(one.name for one in tools.tools))
        session = await self._approve_an_edit()
        await self._answer_a_question(session)
        await self._review_a_plan()
        await self._interrupt_and_resume(session)
        await self._list()

    async def _approve_an_edit(self) -> str:
        _step("A session fixes a bug and asks before it edits")
        file = str(self._project / "calculator.py")
        edit = tool("Edit", file_path=file, old_string="a - b", new_string="a + b")
        prompt = script(
            "add() subtracts. Fix it.", tool("Read", file_path=file), edit, text("Fixed: add() adds now.\n", chunks=5)
        )
        report = await self._call("claude_create_session", prompt=prompt, waitSeconds=30)
        (question,) = report["pendingInputs"]
        _say(f"   waiting  {question['type']}: {question['description']}")
        answer = {"inputId": question["inputId"], "decision": "allow"}
        report = await self._call("claude_respond", sessionId=report["sessionId"], **answer, waitSeconds=30)
        _show(report)
        _say("   file     " + repr((self._project / "calculator.py").read_text(encoding="utf-8")))
        return str(report["sessionId"])

    async def _answer_a_question(self, session: str) -> None:
        _step("The same session asks a question; it appears as a dialog in the client")
        ask = ask_user("Which test framework?", "unittest", "pytest")
        message = script("Now add a test.", ask, text("I will use what you picked.\n"))
        _show(await self._call("claude_send_message", sessionId=session, message=message, waitSeconds=30))

    async def _review_a_plan(self) -> None:
        _step("A second session plans first; the plan is sent back once and then approved")
        file = str(self._project / "NOTES.md")
        steps = (plan("# Write notes\n1. One file"), plan("# Write notes\n1. One file\n2. With a date"))
        prompt = script("Plan the notes.", *steps, tool("Write", file_path=file, content="# Notes\n"), "Written.")
        report = await self._call("claude_create_session", prompt=prompt, permissionMode="plan", waitSeconds=30)
        decisions = [{"decision": "deny", "reason": "Add a date."}, {"decision": "allow"}]
        while report["status"] == "waiting_for_input":
            (question,) = report["pendingInputs"]
            answer = decisions.pop(0) if question["type"] == "plan_review" else {"decision": "allow"}
            _say(f"   waiting  {question['type']}: {question['description']} -> {answer}")
            identity = {"sessionId": report["sessionId"], "inputId": question["inputId"]}
            report = await self._call("claude_respond", **identity, **answer, waitSeconds=30)
        _show(report)
        _say(f"   file     {(self._project / 'NOTES.md').read_text(encoding='utf-8')!r}")

    async def _interrupt_and_resume(self, session: str) -> None:
        _step("A turn takes too long: it is interrupted, and the session goes on")
        message = script("Count slowly.", text("one\ntwo\nthree\nfour\n", chunks=4, interval=5))
        await self._call("claude_send_message", sessionId=session, message=message)
        report = await self._call("claude_get_status", sessionId=session, waitSeconds=1.5)
        _say(f"   status   {report['status']}, so far: {report['recentOutput'][-1:]}")
        report = await self._call("claude_interrupt", sessionId=session)
        _say(f"   status   {report['status']}")
        message = script("Never mind, just say done.", "done")
        _show(await self._call("claude_send_message", sessionId=session, message=message, waitSeconds=30))

    async def _list(self) -> None:
        _step("Every session on this machine, newest first")
        report = await self._call("claude_list_sessions")
        for one in report["sessions"]:
            _say(f"   {one['sessionId']}  {one.get('activeStatus', '-'):10} {one['displayText'][:40]!r}")

    async def _call(self, name: str, **arguments: Any) -> dict[str, Any]:
        shown = json.dumps({key: _short(value) for key, value in arguments.items()}, ensure_ascii=False)
        _say(f"-> {name} {shown}")
        result = await self._client.call_tool(name, arguments)
        if result.is_error or result.structured_content is None:
            raise SystemExit(f"The demo failed: {result.content}")
        return dict(result.structured_content)


def _show(report: dict[str, Any]) -> None:
    for line in report["recentOutput"]:
        _say(f"   output   {line}")
    _say(f"<- {report['status']}, ${report['costUsd']:.4f} so far")


def _short(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    spoken = value.split(" SCRIPT:")[0]
    return spoken if len(spoken) <= 60 else spoken[:59] + "…"


def _step(title: str) -> None:
    _say(f"\n{title}")


def _say(line: str) -> None:
    print(line, flush=True)
