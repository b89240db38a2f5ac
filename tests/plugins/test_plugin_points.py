"""What a plug-in can add to a running server, with plug-ins that are offered as another distribution offers them."""

import json
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import pytest

from claude_code_mcp import installed_plugins
from claude_code_mcp.app import running_service, tools_with
from claude_code_mcp.cli.parser import build_parser, run
from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.errors import ClaudeCodeError, InvalidArgument, PermissionDenied
from claude_code_mcp.core.model.events import AuditEvent, Event
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.model.question import Answer, Question, Resolution
from claude_code_mcp.core.policy.rules import Decision, ToolCall, Verdict
from claude_code_mcp.core.questions.broker import Channel
from claude_code_mcp.core.sessions.observers import Observer
from claude_code_mcp.plugin import Command, Finding, Plugin, RunningServer
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool


class Recorder(Plugin):
    """Uses every point, and notes what it is told."""

    name = "recorder"
    notes: ClassVar[list[str]] = []

    def commands(self) -> Sequence[Command]:
        return (Command("sing", f"{__name__}:add_sing"), Command("sessions count", f"{__name__}:add_count"))

    def checks(self, settings: Any) -> Iterable[Finding]:
        yield Finding("voice", False, "it is hoarse", "drink something warm")

    def check_options(self, options: SessionOptions, *, principal: str) -> None:
        if options.model == "forbidden":
            raise PermissionDenied("model: not with this plug-in", field="model")

    def judge(self, call: ToolCall, principal: str) -> Verdict | None:
        command = str(call.arguments.get("command"))
        if "sealed" in str(call.arguments.get("file_path")):
            return Verdict(Decision.DENY, "recorder")
        if "boom" in command:
            raise RuntimeError("the judge failed")
        if "secret" in command:
            return Verdict(Decision.DENY, "recorder")
        return Verdict(Decision.ALLOW, "recorder") if "harmless" in command else None

    def observers(self, server: RunningServer) -> Iterable[Observer]:
        return (_Observer(self.notes),)

    def channels(self, server: RunningServer) -> Iterable[Channel]:
        return (_Channel(server, self.notes),)

    @asynccontextmanager
    async def running(self, server: RunningServer) -> AsyncIterator[None]:
        self.notes.append("started")
        yield
        self.notes.append("ended")


class _Observer:
    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def event(self, session_id: str, owner: str, event: Event) -> None:
        self._notes.append(type(event).__name__)

    def act(self, act: AuditEvent) -> None:
        self._notes.append(str(act.kind))


class _Channel:
    """Allows every question."""

    name = "recorder"

    def __init__(self, server: RunningServer, notes: list[str]) -> None:
        self._server = server
        self._notes = notes

    def offer(self, question: Question) -> None:
        self._notes.append(f"asked {question.tool_name}")
        self._server.service.broker.answer(question.session_id, question.id, Answer(allow=True), self.name)

    def withdraw(self, question: Question, resolution: Resolution) -> None:
        self._notes.append(f"closed by {resolution.by}")


def add_sing(commands: Any) -> None:
    parser = commands.add_parser("sing", help="sing")
    parser.set_defaults(run=lambda arguments: print("la") or 7)


def add_count(actions: Any) -> None:
    actions.add_parser("count", help="count").set_defaults(run=lambda arguments: print("3") or 0)


class Broken(Plugin):
    name = "broken"

    def __init__(self) -> None:
        raise RuntimeError("no license")


class Misnamed(Plugin):
    name = "other"


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The entry points that other distributions offer, by name; to be filled by the test."""
    points: dict[str, str] = {}

    def entry_points() -> dict[str, EntryPoint]:
        return {name: EntryPoint(name, value, installed_plugins.GROUP) for name, value in points.items()}

    monkeypatch.setattr(installed_plugins, "_entry_points", entry_points)
    monkeypatch.setattr(Recorder, "notes", [])
    return points


@pytest.fixture
async def server(
    offered: dict[str, str], sandbox: Sandbox, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RunningServer]:
    """A server as `serve` makes it, with the plug-in `recorder`."""
    offered["recorder"] = f"{__name__}:Recorder"
    for name in os.environ:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = load_settings({}, state_dir=sandbox.root / "state", default_cwd=str(sandbox.project))
    async with running_service(settings, "local", None) as (_, _, server):
        assert "recorder" in [plugin.name for plugin in server.plugins]
        yield server
    assert Recorder.notes.index("ended") < Recorder.notes.index("server_stopped")


async def test_a_judge_denies_allows_and_fails_closed(server: RunningServer) -> None:
    steps = [tool("Bash", command=f"echo {word} > {word}", description="d") for word in ("secret", "harmless", "boom")]
    turn = await server.service.create(script("Try.", *steps, "done"))
    outcome = await turn.outcome()
    assert outcome.result == "done"
    assert os.listdir(server.settings.default_cwd) == ["harmless"]
    assert Recorder.notes.count("call_denied") == 2


async def test_rule_denies_a_call_that_claude_code_would_not_ask_about(server: RunningServer, sandbox: Sandbox) -> None:
    sealed = sandbox.project / "sealed"
    sealed.write_text("contents of the file")
    outcome = await (
        await server.service.create(script("Try.", tool("Read", file_path=str(sealed)), "saw: ${tool_result}"))
    ).outcome()
    assert "contents of the file" not in outcome.result
    assert "recorder" in outcome.result
    assert Recorder.notes.count("call_denied") == 1
    assert not [note for note in Recorder.notes if note.startswith("asked")]


async def test_channel_answer_is_reported_to_observers(server: RunningServer) -> None:
    turn = await server.service.create(script("Try.", tool("Bash", command="touch new", description="d"), "done"))
    assert (await turn.outcome()).ok
    assert os.listdir(server.settings.default_cwd) == ["new"]
    asked, closed = Recorder.notes.index("asked Bash"), Recorder.notes.index("closed by recorder")
    assert Recorder.notes.index("started") < asked < closed


async def test_a_check_of_options_refuses_a_session_before_it_starts(server: RunningServer) -> None:
    with pytest.raises(PermissionDenied, match="not with this plug-in"):
        await server.service.create("Hello.", SessionOptions(model="forbidden"))
    assert server.service.sessions() == []


def test_new_command_and_subcommand_of_a_plugin(offered: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    offered["recorder"] = f"{__name__}:Recorder"
    assert run(["sing"]) == 7
    assert run(["sessions", "count"]) == 0
    assert capsys.readouterr().out == "la\n3\n"
    assert "sing" in build_parser().format_help()


def test_a_mistyped_command_of_a_plug_in_is_suggested(
    offered: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    offered["recorder"] = f"{__name__}:Recorder"
    assert run(["snig"]) == 2
    assert "sing" in capsys.readouterr().err


def test_doctor_reports_what_a_plug_in_finds(
    offered: dict[str, str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    offered["recorder"] = f"{__name__}:Recorder"
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert run(["doctor", "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {"what": "voice", "ok": False, "detail": "it is hoarse", "fix": "drink something warm"} in findings


@pytest.mark.parametrize(
    ("points", "named"),
    [
        ({"broken": "Broken"}, "no license"),
        ({"misnamed": "Misnamed"}, "misnamed"),
        ({"missing": "Missing"}, "missing"),
        ({"fleet": "Recorder"}, "fleet"),
    ],
)
def test_a_plug_in_that_cannot_be_used_stops_the_start(
    offered: dict[str, str], points: dict[str, str], named: str
) -> None:
    offered.update({name: f"{__name__}:{value}" for name, value in points.items()})
    with pytest.raises(InvalidArgument, match=named):
        installed_plugins.enabled_plugins(load_settings({}))


class FailsAtStart(Plugin):
    name = "fails"

    def channels(self, server: RunningServer) -> Iterable[Channel]:
        raise RuntimeError("no license")


class FailsToList(Plugin):
    name = "fails"

    def tools(self, settings: Any) -> Iterable[Any]:
        raise RuntimeError("no license")


async def test_a_plug_in_that_fails_at_the_start_is_named(offered: dict[str, str], tmp_path: Path) -> None:
    offered["fails"] = f"{__name__}:FailsAtStart"
    settings = load_settings({}, state_dir=tmp_path)
    with pytest.raises(InvalidArgument, match=r"The plug-in fails cannot be started .*no license"):
        async with running_service(settings, "local", None):
            pass
    with pytest.raises(InvalidArgument, match=r"The plug-in fails cannot be started .*no license"):
        tools_with([FailsToList()], settings)


def test_a_disabled_plug_in_is_not_loaded(offered: dict[str, str]) -> None:
    offered["broken"] = f"{__name__}:Broken"
    enabled = installed_plugins.enabled_plugins(load_settings({}, plugins_off="broken,fleet"))
    assert not {"broken", "fleet"} & {plugin.name for plugin in enabled}


def test_a_name_that_no_plug_in_has_cannot_be_disabled(offered: dict[str, str]) -> None:
    with pytest.raises(ClaudeCodeError, match="flet"):
        installed_plugins.enabled_plugins(load_settings({}, plugins_off="flet"))
