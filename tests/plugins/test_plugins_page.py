"""The page on plug-ins: it names every extension point, and its examples do in a server what it says."""

import inspect
import os
import re
import sys
import types
from collections.abc import AsyncIterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp import (
    Answer,
    InvalidArgument,
    PermissionDenied,
    SessionLibrary,
    SessionOptions,
    installed_plugins,
    load_settings,
)
from claude_code_mcp.app import running_service, tools_with
from claude_code_mcp.cli.parser import run
from claude_code_mcp.core.errors import SessionNotFound
from claude_code_mcp.plugin import Plugin, RunningServer
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool

PAGE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")
POINTS = dict(re.findall(r"^### `(\w+)`$.*?^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
"""The example of each extension point."""
ALONE = {"access": "team", "isolation": "sandbox", "workplaces": "worktrees", "page": "console"}
"""Points that one plug-in may provide, and the bundled one that does."""


def test_the_page_names_every_extension_point() -> None:
    methods = [name for name, _ in inspect.getmembers(Plugin, inspect.isfunction) if not name.startswith("_")]
    assert sorted(POINTS) == sorted(methods)


@pytest.fixture(scope="module")
def examples() -> dict[str, type[Plugin]]:
    """The class of each example, in a module of its own."""
    found = {}
    for point, source in POINTS.items():
        module = types.ModuleType(f"example_of_{point}")
        sys.modules[module.__name__] = module
        exec(compile(source, f"docs/plugins.md: {point}", "exec"), vars(module))
        (kind,) = (
            each
            for each in vars(module).values()
            if isinstance(each, type) and issubclass(each, Plugin) and each is not Plugin
        )
        assert point in vars(kind)
        found[point] = kind
    return found


@pytest.fixture
def offered(examples: dict[str, type[Plugin]], monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are installed."""
    points = {
        kind.name: EntryPoint(kind.name, f"{kind.__module__}:{kind.__name__}", installed_plugins.GROUP)
        for kind in examples.values()
    }
    monkeypatch.setattr(installed_plugins, "_entry_points", lambda: points)


@pytest.fixture
async def server(
    offered: None, sandbox: Sandbox, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[RunningServer, dict[str, Plugin]]]:
    """A server with all of them, and its plug-ins by name."""
    for name in os.environ:
        monkeypatch.delenv(name)
    for name, value in {**environment, "HTTPS_PROXY": "http://127.0.0.1:9"}.items():
        monkeypatch.setenv(name, value)
    settings = load_settings(
        {"CLAUDE_CODE_MCP_PAGER_TOKEN": "pager-token-1234"},
        state_dir=sandbox.root / "state",
        default_cwd=str(sandbox.project),
        plugins_off=",".join(ALONE.values()),
    )
    async with running_service(settings, "local", None) as (_, _, running):
        yield running, {plugin.name: plugin for plugin in running.plugins}


async def test_the_examples_work_in_a_server(
    server: tuple[RunningServer, dict[str, Any]], sandbox: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    running, plugins = server
    service = running.service
    steps = [
        tool("Bash", command="touch deployed # deploy", description="d"),
        tool("Bash", command="touch slept # at night", description="d"),
        tool("Bash", command='echo "proxy $HTTPS_PROXY" > asked', description="d"),
    ]
    turn = await service.create(script("Try.", *steps, "done"))
    await turn.session.wait(None)
    (question,) = turn.session.questions
    assert await plugins["busy"].queries(running)["busy"]() == 1
    service.respond(turn.session.id, question.id, Answer(allow=True))
    assert (await turn.outcome()).result == "done"
    assert os.listdir(sandbox.project) == ["asked"], "the judge has denied the first, the channel the second"
    assert (sandbox.project / "asked").read_text() == "proxy \n"
    with pytest.raises(PermissionDenied, match="interns"):
        plugins["models"].check_options(SessionOptions(model="opus"), principal="intern")
    with pytest.raises(InvalidArgument, match="disk is small"):
        await service.create("Try.", SessionOptions(worktree=True))
    assert service.session(turn.session.id, principal="lead") is turn.session
    with pytest.raises(PermissionDenied):
        service.respond(turn.session.id, "q-1", Answer(allow=True), principal="lead")
    with pytest.raises(SessionNotFound):
        service.session(turn.session.id, principal="stranger")
    assert "stranger was refused something" in capsys.readouterr().out
    assert plugins["pager"].is_configured(running.settings)
    assert service.redaction.text("pager-token-1234") != "pager-token-1234"
    assert "count_words" in tools_with([*plugins.values()], running.settings)


def test_the_command_of_the_page_runs(offered: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["greet"]) == 0
    assert capsys.readouterr().out == "Hello.\n"


async def test_the_other_examples_do_what_they_say(examples: dict[str, type[Plugin]], tmp_path: Path) -> None:
    settings = load_settings({}, state_dir=tmp_path)
    (finding,) = examples["checks"]().checks(settings)
    assert "GiB are free" in finding.detail
    (badges,) = examples["authenticators"]().authenticators(settings)
    admitted = await badges.by_token("badge-0123456789")
    assert admitted is not None
    assert admitted.identity.principal == "ann"
    assert await admitted.access.recheck() is not None
    assert await badges.by_token("badge-9") is None
    notes = tmp_path / "notes-s1.txt"
    notes.touch()
    library: Any = SessionLibrary
    async with examples["deleting"]().deleting(settings, library, "s1"):
        assert notes.exists()
    assert not notes.exists()
