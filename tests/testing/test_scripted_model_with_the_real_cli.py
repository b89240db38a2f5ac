"""The real Claude Code CLI, driven over its pipes, against a scripted model."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from claude_code_mcp.testing import Sandbox, ScriptedModel
from claude_code_mcp.testing.script import (
    StepObject,
    agent,
    ask_user,
    cut,
    fail,
    modify,
    parallel,
    plan,
    script,
    stall,
    structured,
    text,
    thinking,
    tool,
)
from tests.support.waiting import HANG_SECONDS

Frame = dict[str, Any]
Answerer = Callable[[Frame], Frame]

SCHEMA = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
FLAGS = ("-p", "--output-format", "stream-json", "--input-format", "stream-json", "--verbose")
LIMIT = 1 << 26


def real_cli() -> str | None:
    spec = find_spec("claude_agent_sdk")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    names = [folder / "_bundled" / ("claude.exe" if sys.platform == "win32" else "claude") for folder in folders]
    return next((str(name) for name in names if name.exists()), None)


CLI = real_cli()
pytestmark = [
    pytest.mark.skipif(CLI is None, reason="the cli extra is not installed"),
    pytest.mark.asyncio(loop_scope="module"),
]


def allow(request: Frame) -> Frame:
    return {"behavior": "allow", "updatedInput": request["input"]}


class RealCli:
    """One process; `questions` holds what it asked over the control protocol."""

    def __init__(self, process: asyncio.subprocess.Process, answer: Answerer) -> None:
        self.process = process
        self.answer = answer
        self.questions: list[Frame] = []

    async def send(self, frame: Frame) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(frame).encode() + b"\n")
        await self.process.stdin.drain()

    async def say(self, prompt: str) -> None:
        message = {"role": "user", "content": prompt}
        await self.send({"type": "user", "message": message, "parent_tool_use_id": None, "session_id": ""})

    async def control(self, **request: Any) -> None:
        await self.send({"type": "control_request", "request_id": "mine", "request": request})

    async def turn(self, prompt: str) -> list[Frame]:
        await self.say(prompt)
        return await self.until("result")

    async def until(self, kind: str) -> list[Frame]:
        frames: list[Frame] = []
        while not frames or frames[-1]["type"] != kind:
            frames.append(await self.frame())
        return frames

    async def frame(self) -> Frame:
        assert self.process.stdout
        frame: Frame = json.loads(await self.process.stdout.readline())
        if frame["type"] == "control_request":
            self.questions.append(frame["request"])
            reply = {"subtype": "success", "request_id": frame["request_id"]}
            reply["response"] = self.answer(frame["request"])
            await self.send({"type": "control_response", "response": reply})
        return frame

    async def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), HANG_SECONDS)
        finally:
            if self.process.returncode is None:
                self.process.kill()
                await self.process.wait()


@asynccontextmanager
async def running(sandbox: Sandbox, *flags: str, answer: Answerer = allow, **extra: str) -> AsyncIterator[RealCli]:
    assert CLI
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        CLI, *FLAGS, *flags, stdin=pipe, stdout=pipe, stderr=nothing, limit=LIMIT,
        cwd=sandbox.project, env=sandbox.environment(**extra),
    )  # fmt: skip
    cli = RealCli(process, answer)
    try:
        await cli.control(subtype="initialize")
        await cli.until("control_response")
        yield cli
    finally:
        await cli.close()


@pytest_asyncio.fixture(loop_scope="module")
async def model() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel() as model:
        yield model


@pytest.fixture
def sandbox(tmp_path: Path, model: ScriptedModel) -> Sandbox:
    return Sandbox(tmp_path, model.url)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def busy_model() -> AsyncIterator[ScriptedModel]:
    """The model of the process that several tests share."""
    async with ScriptedModel() as model:
        yield model


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cli(busy_model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RealCli]:
    """One process for tests that need nothing special of it: each has a turn of its own, or several."""
    sandbox = Sandbox(tmp_path_factory.mktemp("shared"), busy_model.url)
    async with running(sandbox, "--include-partial-messages", CLAUDE_CODE_MAX_RETRIES="3") as cli:
        yield cli


def results(frames: list[Frame]) -> list[str]:
    """The contents of the tool results among the frames."""
    users = (frame["message"]["content"] for frame in frames if frame["type"] == "user")
    blocks = (block for content in users if isinstance(content, list) for block in content)
    return [str(block["content"]) for block in blocks if block["type"] == "tool_result"]


def deltas(frames: list[Frame], field: str) -> list[str]:
    events = (frame["event"] for frame in frames if frame["type"] == "stream_event")
    inner = (event["delta"] for event in events if event["type"] == "content_block_delta")
    return [delta[field] for delta in inner if field in delta]


async def test_words_arrive_in_as_many_deltas_as_the_step_asks_for(cli: RealCli) -> None:
    frames = await cli.turn(script("hi", text("abcdefgh", chunks=4)))
    assert deltas(frames, "text") == ["ab", "cd", "ef", "gh"]
    assert frames[-1]["result"] == "abcdefgh"


async def test_a_thought_comes_before_the_words(cli: RealCli) -> None:
    frames = await cli.turn(script("hi", thinking("Hmm.", "Well.")))
    said = [frame["message"]["content"][0]["type"] for frame in frames if frame["type"] == "assistant"]
    assert said == ["thinking", "text"]
    assert deltas(frames, "thinking") == ["Hmm."]


async def test_a_tool_call_really_runs_and_the_model_gets_its_result(cli: RealCli, busy_model: ScriptedModel) -> None:
    frames = await cli.turn(script("hi", tool("Bash", command="echo $((6*7))"), "It is ${tool_result}."))
    assert results(frames) == ["42"]
    assert frames[-1]["result"] == "It is 42."
    assert [result.text for result in busy_model.requests[-1].tool_results] == ["42"]


async def test_every_call_of_one_message_gets_its_own_result(cli: RealCli, busy_model: ScriptedModel) -> None:
    calls = [{**tool("Bash", command=f"echo {name}"), "id": f"toolu_{name}"} for name in ("one", "two")]
    await cli.turn(script("hi", parallel("Both.", *calls), "Done."))
    last = busy_model.requests[-1]
    by_call = {result.tool_use_id: result.text for result in last.tool_results}  # in no certain order
    assert (by_call, last.step) == ({"toolu_one": "one", "toolu_two": "two"}, 1)


@pytest.mark.soak  # tests/core/sessions/test_plans_and_user_questions.py
async def test_a_question_to_the_person_is_answered_over_the_control_protocol(sandbox: Sandbox) -> None:
    def choose(request: Frame) -> Frame:
        answers = {"Which color?": "blue"}
        return {"behavior": "allow", "updatedInput": {**request["input"], "answers": answers}}

    async with running(sandbox, "--permission-prompt-tool", "stdio", answer=choose) as cli:
        frames = await cli.turn(script("hi", ask_user("Which color?", "red", "blue"), "Thanks."))
    assert [question["tool_name"] for question in cli.questions] == ["AskUserQuestion"]
    assert "blue" in results(frames)[0]


@pytest.mark.soak  # tests/server/test_answering.py
async def test_a_plan_is_written_to_the_file_the_cli_chose_and_shown_for_approval(sandbox: Sandbox) -> None:
    flags = ("--permission-prompt-tool", "stdio", "--permission-mode", "plan")
    async with running(sandbox, *flags) as cli:
        frames = await cli.turn(script("hi", plan("# Plan\n1. Rest."), "Approved."))
    (question,) = cli.questions
    assert question["tool_name"] == "ExitPlanMode"
    assert question["input"]["plan"] == "# Plan\n1. Rest."
    assert Path(question["input"]["planFilePath"]).is_relative_to(sandbox.home)
    assert frames[-1]["result"] == "Approved."


@pytest.mark.soak  # tests/server/test_answering.py
async def test_a_refused_plan_can_be_revised(sandbox: Sandbox) -> None:
    def only_the_second(request: Frame) -> Frame:
        approved = request["input"]["plan"] == "Better."
        return allow(request) if approved else {"behavior": "deny", "message": "Shorter, please."}

    flags = ("--permission-prompt-tool", "stdio", "--permission-mode", "plan")
    async with running(sandbox, *flags, answer=only_the_second) as cli:
        frames = await cli.turn(script("hi", plan("A long plan."), plan("Better."), "Approved."))
    assert [question["input"]["plan"] for question in cli.questions] == ["A long plan.", "Better."]
    assert any("Shorter, please." in result for result in results(frames))
    assert frames[-1]["result"] == "Approved."


async def test_plan_mode_can_be_entered_by_the_model(sandbox: Sandbox) -> None:
    async with running(sandbox, "--permission-prompt-tool", "stdio") as cli:
        await cli.turn(script("hi", tool("EnterPlanMode"), plan("Rest."), "Approved."))
    assert cli.questions[-1]["input"]["plan"] == "Rest."


@pytest.mark.soak  # tests/server/test_faults.py
async def test_a_step_can_fail_a_few_times_and_then_succeed(cli: RealCli, busy_model: ScriptedModel) -> None:
    before = len(busy_model.requests)
    frames = await cli.turn(script("hi", fail(529, times=2, then="Fine.")))
    assert [request.status for request in busy_model.requests[before:]] == [529, 529, 200]
    assert [frame.get("error_status") for frame in frames if frame.get("subtype") == "api_retry"] == [
        529,
        529,
    ]
    assert frames[-1]["result"] == "Fine."


async def test_permanently_failing_step_ends_the_turn_with_an_error(cli: RealCli) -> None:
    frames = await cli.turn(script("hi", fail(400, message="no such thing")))
    assert frames[-1]["is_error"]
    assert frames[-1]["api_error_status"] == 400
    assert "no such thing" in frames[-1]["result"]


async def test_a_bad_key_is_refused(sandbox: Sandbox) -> None:
    async with running(sandbox, ANTHROPIC_API_KEY="sk-bad", CLAUDE_CODE_MAX_RETRIES="0") as cli:
        frames = await cli.turn(script("hi", "never said"))
    assert frames[-1]["api_error_status"] == 401


async def test_interrupted_stream_is_retried(cli: RealCli, busy_model: ScriptedModel) -> None:
    before = len(busy_model.requests)
    frames = await cli.turn(script("hi", cut("The whole sentence.", times=1)))
    assert len(busy_model.requests) == before + 2
    assert frames[-1]["result"] == "The whole sentence."


async def test_a_stalled_stream_can_be_interrupted(cli: RealCli) -> None:
    await cli.say(script("hi", stall("Wait for it")))
    await cli.until("stream_event")
    await cli.control(subtype="interrupt")
    frames = await cli.until("result")
    assert frames[-1]["terminal_reason"] == "aborted_streaming"
    assert (await cli.turn(script("again", "Here I am.")))[-1]["result"] == "Here I am."


@pytest.mark.soak  # tests/core/sessions/test_outcomes.py
async def test_structured_output_is_handed_in_unless_the_model_never_complies(sandbox: Sandbox) -> None:
    steps: list[list[StepObject | str]] = [[structured({"a": 1})], ["no", structured({"a": 1})], ["no", "no", "no"]]
    async with running(sandbox, "--json-schema", SCHEMA) as cli:
        ends = [(await cli.turn(script("hi", *one)))[-1] for one in steps]
    assert [end.get("structured_output") for end in ends] == [{"a": 1}, {"a": 1}, None]
    assert ends[-1]["subtype"] == "success"


async def test_the_usage_of_a_step_is_in_the_result(cli: RealCli) -> None:
    usage = {"input_tokens": 1234, "output_tokens": 56, "cache_read_input_tokens": 7}
    frames = await cli.turn(script("hi", text("ok", usage=usage)))
    assert {name: frames[-1]["usage"][name] for name in usage} == usage


async def test_the_stop_reason_of_a_step_is_in_the_result(cli: RealCli) -> None:
    frames = await cli.turn(script("hi", modify("Enough.", stop_reason="stop_sequence")))
    assert frames[-1]["stop_reason"] == "stop_sequence"


async def test_a_later_prompt_brings_its_own_script(cli: RealCli) -> None:
    first = await cli.turn(script("hi", "One.", "never said"))
    second = await cli.turn(script("hi again", "Two."))
    third = await cli.turn("and now?")
    assert [frames[-1]["result"] for frames in (first, second, third)] == ["One.", "Two.", "script done"]


async def test_a_script_sent_during_a_turn_replaces_the_rest(sandbox: Sandbox) -> None:
    wait = "until [ -e go ]; do sleep 0.05; done; echo went"
    async with running(sandbox, "--permission-prompt-tool", "stdio") as cli:
        await cli.say(script("hi", tool("Bash", command=wait), "The old end."))
        await cli.until("assistant")
        await cli.say(script("stop that", "The new end."))
        await cli.control(subtype="initialize")
        await cli.until("control_response")
        (sandbox.project / "go").touch()
        frames = await cli.until("result")
    assert frames[-1]["result"] == "The new end."


@pytest.mark.soak  # tests/core/sessions/test_session_library.py
@pytest.mark.parametrize("background", [False, True])
async def test_a_subagent_plays_the_script_in_its_own_prompt(
    sandbox: Sandbox, model: ScriptedModel, background: bool
) -> None:
    inner = script("sub", tool("Bash", command="echo inner"), "Inner: ${tool_result}.")
    async with running(sandbox) as cli:
        frames = await cli.turn(script("hi", agent("look", inner, background=background), "Outer.", "Noted."))
        if background:
            frames += await cli.until("result")
    assert any("Inner: inner." in json.dumps(frame) for frame in frames)
    assert frames[-1]["result"] == ("Noted." if background else "Outer.")
    assert len({request.session_id for request in model.requests}) == 1


async def test_a_title_is_given_without_playing_a_step(cli: RealCli) -> None:
    await cli.control(subtype="generate_session_title", description=script("x", tool("Bash")), persist=False)
    reply = (await cli.until("control_response"))[-1]
    assert reply["response"]["response"] == {"title": "Scripted session"}


async def test_a_conversation_can_be_compacted(sandbox: Sandbox) -> None:
    async with running(sandbox) as cli:
        await cli.turn(script("hi", tool("Bash", command="echo 1"), "One."))
        assert not (await cli.turn("/compact"))[-1]["is_error"]
        assert (await cli.turn(script("go on", "Two.")))[-1]["result"] == "Two."


@pytest.mark.soak  # tests/server/test_concurrent_callers.py
async def test_sessions_share_one_model_without_mixing_their_scripts(sandbox: Sandbox) -> None:
    async def one(name: str) -> Any:
        async with running(sandbox) as cli:
            return (await cli.turn(script(name, tool("Bash", command=f"echo {name}"), "${tool_result}")))[-1]["result"]

    runs: list[Awaitable[Any]] = [one(name) for name in ("a", "b", "c")]
    assert await asyncio.gather(*runs) == ["a", "b", "c"]
