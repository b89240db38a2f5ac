"""What callers are told of options that have no effect; what Claude Code does with them is seen on the real CLI."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from claude_code_mcp.core.model.options import SessionOptions, Thinking
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.option_notices import notices_of, option_notices
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script
from tests.conftest import StartService
from tests.support.tables import every_row

from .support import end_of, options, run, say

HELLO = script("Say hello", "hello")


async def resume(service: Service, session_id: str, asked: SessionOptions) -> Session:
    assert (await say(service, session_id, HELLO, options=asked)).ok
    return service.session(session_id)


async def fork(service: Service, session_id: str, asked: SessionOptions) -> Session:
    turn = await service.fork(session_id, HELLO, options=asked)
    assert (await end_of(turn)).ok
    return turn.session


@pytest.mark.soak
@pytest.mark.parametrize("goes_on", [resume, pytest.param(fork, marks=pytest.mark.soak)])
@pytest.mark.parametrize("option", ["system_prompt", pytest.param("append_system_prompt", marks=pytest.mark.soak)])
async def test_a_conversation_keeps_its_system_prompt_and_a_notice_says_so(
    start_service: StartService,
    sandbox: Sandbox,
    model: ScriptedModelThread,
    option: str,
    goes_on: Callable[[Service, str, SessionOptions], Awaitable[Session]],
) -> None:
    first: Any = await start_service()
    began, _ = await run(first, HELLO, options(sandbox, **{option: "Speak like a pirate."}))
    await first.__aexit__()
    second: Any = await start_service()
    session = await goes_on(second, began.id, SessionOptions(**{option: "Speak like a heron."}))
    system = model.requests[-1].system
    assert "pirate" in system
    assert "heron" not in system, "the CLI does not take another one"
    assert getattr(session.options, option) == "Speak like a pirate.", "nor is it reported"
    [notice] = notices_of(session)
    assert notice.startswith("systemPrompt was not applied")
    same = await goes_on(second, session.id, SessionOptions(**{option: "Speak like a pirate."}))
    assert goes_on is resume or notices_of(same) == [], "the same one changes nothing"


THINKING = {
    "a budget": Thinking(type="enabled", budget_tokens=2000),
    "none": Thinking(type="disabled"),
    "adaptive": Thinking(type="adaptive"),
}
MODELS = ("claude-haiku-4-5", "claude-opus-4-6", "claude-opus-5", "claude-sonnet-5-5", "opus", "haiku")
OLD_MODEL = "claude-3-5-haiku-20241022"


@pytest.mark.soak
@pytest.mark.parametrize("name", [OLD_MODEL, *(pytest.param(name, marks=pytest.mark.soak) for name in MODELS)])
async def test_a_notice_says_where_the_cli_asks_the_model_for_other_thinking_than_was_wanted(
    service: Service, sandbox: Sandbox, model: ScriptedModelThread, name: str
) -> None:
    for what, thinking in THINKING.items():
        session, _ = await run(service, HELLO, options(sandbox, model=name, thinking=thinking))
        body = model.requests[-1].body
        assert body is not None
        asked = body.get("thinking", {"type": "disabled"})
        wanted = {"type": thinking.type, **({"budget_tokens": 2000} if thinking.budget_tokens else {})}
        heeded = wanted.items() <= asked.items()
        notices = [line for line in notices_of(session) if line.startswith("thinking")]
        assert bool(notices) is not heeded, (name, what, asked, notices)
        assert all(body["model"].startswith(re.findall(r"claude-[a-z0-9-]+", line)[0]) for line in notices)


@every_row(
    ("asked", "notices"),
    [
        (
            {"allowed_tools": ("Bsh", "mcp__x__y")},
            "allowedTools: there is no tool named 'Bsh' (did you mean Bash?).",
        ),
        ({"disallowed_tools": ("Qqq",)}, "disallowedTools: there is no tool named 'Qqq'."),
    ],
)
def test_unknown_tools_are_reported(asked: Any, notices: str) -> None:
    assert option_notices(SessionOptions(**asked)) == (notices,)


def test_a_long_list_of_unknown_tools_is_cut() -> None:
    [notice] = option_notices(SessionOptions(allowed_tools=tuple(f"Qqq{number}" for number in range(50))))
    assert "Qqq9" in notice
    assert "Qqq10" not in notice
    assert re.search(r"\b40\b", notice)


def test_there_is_nothing_to_say_of_usual_options() -> None:
    usual = SessionOptions(allowed_tools=("Bash(ls *)",), system_prompt="Be brief.")
    assert option_notices(usual) == option_notices(None) == option_notices(usual, usual) == ()
