"""The example plug-in for Slack in a server, against a small fake of Slack: what is shown, who may answer, who is told.

How it is installed and found: `test_example_wheels.py`.
"""

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from importlib.metadata import EntryPoint

import pytest
from claude_code_mcp_slack.messages import messages_of

from claude_code_mcp import Answer, Question, QuestionKind, Service, SessionOptions, installed_plugins, load_settings
from claude_code_mcp.app import running_service
from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.model.events import AuditEvent, AuditKind, Event, Output, QuestionSettled
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import ask_user, parallel, plan, question, script, tool
from tests.support.waiting import until_true

from .fake_slack import ANN, EVE, SETTINGS, FakeSlack, Posted, fake_slack

Stop = Callable[[], Awaitable[None]]
Serve = Callable[..., Awaitable[Service]]
LONG = "echo " + "x" * 8_000 + "\n" + "\n".join(f"touch file{number}" for number in range(2_000))


@pytest.fixture
async def slack() -> AsyncIterator[FakeSlack]:
    async with fake_slack() as fake:
        yield fake


@pytest.fixture
def stack() -> AsyncExitStack:
    return AsyncExitStack()


@pytest.fixture
def stop(stack: AsyncExitStack) -> Stop:
    """Ends the server."""
    return stack.aclose


@pytest.fixture
async def serve(
    slack: FakeSlack,
    stack: AsyncExitStack,
    sandbox: Sandbox,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Serve]:
    """Starts a server with the plug-in, as `serve` does; other variables are added."""
    point = EntryPoint("slack", "claude_code_mcp_slack.plugin:SlackPlugin", installed_plugins.GROUP)
    monkeypatch.setattr(installed_plugins, "_entry_points", lambda: {"slack": point})
    for name in os.environ:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    async with stack:

        async def start(**more: str) -> Service:
            variables = {**SETTINGS, "CLAUDE_CODE_MCP_SLACK_API": f"{slack.address}/api", **more}
            settings = load_settings(
                {name: value for name, value in variables.items() if value},
                state_dir=sandbox.root / "state",
                default_cwd=str(sandbox.project),
            )
            service, _, _ = await stack.enter_async_context(
                running_service(settings, "local", sandbox.root / "audit.jsonl")
            )
            return service

        yield start


@pytest.fixture
async def service(serve: Serve) -> Service:
    return await serve()


class Acts:
    """The acts that are audited."""

    def __init__(self) -> None:
        self.seen: list[AuditEvent] = []

    def event(self, session_id: str, owner: str, event: Event) -> None:
        pass

    def act(self, act: AuditEvent) -> None:
        self.seen.append(act)


def touch(name: str) -> str:
    return script("Try.", tool("Bash", command=f"touch {name}", description="d"), "done")


async def next_question(slack: FakeSlack, before: Posted) -> Posted:
    """The newest message with buttons, once it is another."""
    await until_true(lambda: slack.asking and slack.asking[-1] is not before, "no other message has buttons")
    return slack.asking[-1]


async def test_the_people_listed_answer_each_kind_of_question_once(
    service: Service, slack: FakeSlack, sandbox: Sandbox, stop: Stop
) -> None:
    acts = Acts()
    service.observe(acts)
    several = ask_user(
        question("Which color?", "red", "blue"),
        question("Which fruits?", "apple", "pear", "plum", header="Fruits", multiple=True),
        question("Which name?", "Ann", "Bob"),
    )
    calls = {
        name: tool("Bash", command=f"touch {name}", description="d") for name in ("new", "denied", "other", "same")
    }
    turn = await service.create(
        script(
            "Try.",
            *(calls["new"], calls["denied"], parallel("heard: ${tool_result}", calls["other"])),
            *(calls["same"], calls["same"], ask_user("Which color?", "red", "green")),
            *(parallel("chosen: ${tool_result}", several), "saw: ${tool_result}"),
        )
    )

    def output() -> str:
        return "\n".join(event.line for event in turn.session.events.after(0) if isinstance(event, Output))

    # A button allows a call.
    asked = await slack.question()
    assert "touch new" in asked.text
    assert asked.buttons["allow"] == "Allow once"
    await slack.press(asked, "allow")
    await until_true(lambda: asked.edits == 1)
    assert not asked.buttons
    assert f"Allowed by <@{ANN}>" in asked.notices
    assert "touch new" in asked.text
    # Only the people listed may answer, and a denial tells Claude the reason.
    asked = await next_question(slack, asked)
    assert os.listdir(sandbox.project) == ["new"]
    await slack.press(asked, "allow", user=EVE)
    await until_true(lambda: slack.whispers)
    assert slack.whispers == [(EVE, "You may not answer the questions of this server.")]
    assert turn.session.questions
    assert [(act.kind, act.who) for act in acts.seen if EVE in act.who] == [(AuditKind.REFUSED, f"slack:{EVE}")]
    await slack.press(asked, "deny", values={"reason": {"value": "not in this directory"}})
    # A message is edited when somebody else was faster, and a late press is told.
    asked = await next_question(slack, asked)
    await until_true(lambda: "heard: " in output() and "not in this directory" in output(), "the reason of the denial")
    assert os.listdir(sandbox.project) == ["new"]
    before = asked.blocks
    (opened,) = turn.session.questions
    service.respond(turn.session.id, opened.id, Answer(allow=True), by="terminal")
    await until_true(lambda: asked.edits)
    assert "Allowed by terminal" in asked.notices
    # It was on its way already.
    await slack.press(asked, "deny", blocks=before)
    await until_true(lambda: len(slack.whispers) == 2)
    assert slack.whispers[1] == (ANN, f"Question {opened.id!r} was already answered by terminal.")
    # An allowance for the session reaches the next call.
    asked = await next_question(slack, asked)
    assert sorted(os.listdir(sandbox.project)) == ["new", "other"]
    await slack.press(asked, "session")
    # A single choice has a button for each option.
    asked = await next_question(slack, asked)
    assert len(slack.messages) == 5, "the second call was not asked about"
    assert [asked.buttons["option:1"], asked.buttons["option:2"]] == ["red", "green"]
    await slack.press(asked, "option:2")
    # Several choices are sent together.
    asked = await next_question(slack, asked)
    await until_true(lambda: "green" in output().partition("chosen: ")[2], "the single choice")
    await slack.press(asked, "send")
    await until_true(lambda: len(slack.whispers) == 3)
    assert "answers: required" in slack.whispers[2][1]
    values = {
        "choice:1": {"selected_option": {"value": "1"}},
        "choice:2": {"selected_options": [{"value": "2"}, {"value": "3"}]},
        "own:3": {"value": "somebody else"},
    }
    await slack.press(asked, "send", values=values)
    result = str((await turn.outcome()).result)
    assert all(answer in result for answer in ("red", "pear, plum", "somebody else")), result
    assert sorted(os.listdir(sandbox.project)) == ["new", "other", "same"]
    # The audit trail names who answered.
    await stop()
    audited = map(json.loads, (sandbox.root / "audit.jsonl").read_text().splitlines())
    answered = [line for line in audited if line["act"] == "question_answered"]
    assert [(line["by"], line.get("client"), line["decision"]) for line in answered[:2]] == [
        ("slack", ANN, "allow"),
        ("slack", ANN, "deny"),
    ]


async def test_a_plan_is_approved_with_the_mode_that_follows(service: Service, slack: FakeSlack) -> None:
    steps = script("plan", plan("# Steps\n1. Write it."), "saw: ${tool_result}")
    turn = await service.create(steps, SessionOptions(permission_mode="plan"))
    asked = await slack.question()
    assert "1. Write it." in asked.text
    assert {"allow", "edits", "deny"} == set(asked.buttons)
    await slack.press(asked, "edits")
    assert "approved" in str((await turn.outcome()).result).lower()


async def test_a_long_command_is_shown_whole_and_one_that_nobody_reads_in_a_chat_can_only_be_denied(
    service: Service, slack: FakeSlack
) -> None:
    longer = "\n".join(f"touch file{number}" for number in range(6_000))
    steps = [tool("Bash", command=command, description="d") for command in (LONG, longer)]
    turn = await service.create(script("Try.", *steps, "done"))
    asked = await slack.question()
    assert asked is slack.messages[-1]
    assert len(slack.messages) > 2
    assert [message.buttons for message in slack.messages[:-1]] == [{}] * (len(slack.messages) - 1)
    assert LONG in "".join(message.text for message in slack.messages)
    assert [f"Part {number} of" in message.notices for number, message in enumerate(slack.messages, 1)]
    await slack.press(asked, "deny")
    asked = await next_question(slack, asked)
    assert set(asked.buttons) == {"deny"}
    assert "too many for a chat" in asked.text
    await slack.press(asked, "allow")
    await until_true(lambda: slack.whispers)
    assert "can only be denied" in slack.whispers[0][1]
    await slack.press(asked, "deny")
    assert (await turn.outcome()).ok


async def test_secrets_do_not_leave_and_a_redacted_label_is_answered_as_it_was(
    service: Service, slack: FakeSlack
) -> None:
    service.add_secrets(["hunter2hunter2"])
    asking = ask_user("Which password?", "hunter2hunter2", "none")
    turn = await service.create(script("ask", asking, "saw: ${tool_result}"))
    opened = await slack.question()
    assert "hunter2" not in str(opened.blocks)
    settled: list[Answer | None] = []
    service.observe(Settled(settled))
    await slack.press(opened, "option:1")
    assert (await turn.outcome()).ok
    (answer,) = settled
    assert answer is not None
    assert answer.answers == {"Which password?": "hunter2hunter2"}


class Settled(Acts):
    """The answers of questions that were settled."""

    def __init__(self, answers: list[Answer | None]) -> None:
        super().__init__()
        self._answers = answers

    def event(self, session_id: str, owner: str, event: Event) -> None:
        if isinstance(event, QuestionSettled):
            self._answers.append(event.resolution.answer)


async def test_an_outage_delays_a_question_and_loses_none(service: Service, slack: FakeSlack) -> None:
    slack.failures = [429, 500]
    turn = await service.create(touch("new"))
    asked = await slack.question()
    assert len(slack.messages) == 1
    await slack.cut_off()
    await until_true(lambda: slack.connections == 2)
    await slack.press(asked, "deny")
    assert (await turn.outcome()).ok


async def test_a_message_of_an_earlier_server_loses_its_buttons_when_one_is_pressed(
    service: Service, slack: FakeSlack
) -> None:
    old = Question("q-of-before", "a-session", QuestionKind.PERMISSION, "Bash", {"command": "ls"}, "Run: ls")
    (blocks,) = messages_of(old)
    await slack.press(Posted("0.5", blocks), "allow")
    await until_true(lambda: slack.messages and slack.whispers)
    assert "no question" in slack.whispers[0][1]
    assert not slack.messages[0].buttons


async def test_messages_say_that_the_server_has_ended(slack: FakeSlack, serve: Serve, stop: Stop) -> None:
    service = await serve()
    await service.create(touch("new"))
    asked = await slack.question()
    await stop()
    assert not asked.buttons
    assert "The server has ended" in asked.notices


async def test_without_a_token_nothing_is_posted(slack: FakeSlack, serve: Serve) -> None:
    service = await serve(CLAUDE_CODE_MCP_SLACK_BOT_TOKEN="")
    turn = await service.create(touch("new"))
    await turn.session.wait(None)
    (opened,) = turn.session.questions
    service.respond(turn.session.id, opened.id, Answer(allow=False))
    assert (await turn.outcome()).ok
    assert slack.calls == 0


@pytest.mark.parametrize("missing", ["APP_TOKEN", "CHANNEL", "USERS"])
async def test_half_a_configuration_stops_the_start(serve: Serve, missing: str) -> None:
    with pytest.raises(InvalidArgument, match=f"slack_{missing.lower()}"):
        await serve(**{f"CLAUDE_CODE_MCP_SLACK_{missing}": ""})


@pytest.mark.parametrize("length", [1, 1499, 1500, 1501, 12_000, 59_000])
def test_nothing_of_a_text_is_left_out(length: int) -> None:
    command = "".join(f"word{number}" + ("\n" if number % 7 == 0 else " ") for number in range(length))[:length]
    asked = Question("q-1", "s", QuestionKind.PERMISSION, "Bash", {"command": command}, "Run a command")
    shown = "".join(
        block["text"]["text"] for blocks in messages_of(asked) for block in blocks if block["type"] == "section"
    )
    assert command in shown
