"""Faults that the real CLI will not produce: it fails to start, dies, or says what nobody expects."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.errors import ExecutableNotFound, InvalidArgument
from claude_code_mcp.core.model.caller import LOCAL, Caller, ClientEnvironment
from claude_code_mcp.core.model.events import Message, Noise
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.model.outcome import OutcomeCode
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.callers.expected_callers import ExpectedCallers
from claude_code_mcp.testing import Sandbox
from tests.conftest import StartService
from tests.support.misbehaving_cli import install_misbehaving_cli
from tests.support.parts import service_parts

from .support import end_of, events, options, run, say, until


@pytest.fixture
def cli(sandbox: Sandbox) -> Path:
    return install_misbehaving_cli(sandbox.root / "bin")


async def misbehaving(start_service: StartService, cli: Path, ways: dict[str, Any], **settings: Any) -> Service:
    service = await start_service(
        {"MISBEHAVE": json.dumps(ways)}, claude_path=str(cli), stop_timeout_ms=300, **settings
    )
    assert isinstance(service, Service)
    return service


async def test_an_executable_that_is_not_there_is_found_out_before_anything_starts(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service(claude_path=str(sandbox.root / "nowhere"))
    with pytest.raises(ExecutableNotFound):
        await service.create("hello", options(sandbox))
    assert service.sessions() == []


async def test_a_file_that_is_no_program_fails_to_start(service: Service, sandbox: Sandbox) -> None:
    garbage = sandbox.root / "garbage"
    garbage.write_bytes(b"\x00\x01\x02")
    garbage.chmod(0o755)
    session, outcome = await run(service, "hello", options(sandbox, executable=str(garbage)))
    assert (outcome.code, outcome.error_code) == (OutcomeCode.START_FAILED, "INTERNAL")
    assert session.state is State.ERROR


@pytest.mark.parametrize("moment", ["start", "initialize"])
async def test_a_process_that_exits_at_once_reports_why(
    start_service: StartService, sandbox: Sandbox, cli: Path, moment: str
) -> None:
    ways = {"stderr": "out of luck", "crash": 3, "crash_at": moment}
    service = await misbehaving(start_service, cli, ways)
    session, outcome = await run(service, "hello", options(sandbox))
    assert (outcome.code, session.state) == (OutcomeCode.START_FAILED, State.ERROR)
    assert "code 3" in outcome.detail
    assert "out of luck" in outcome.detail
    assert not session.live


async def test_a_process_that_is_gone_before_it_can_be_greeted_reports_why(service: Service, sandbox: Sandbox) -> None:
    hasty = sandbox.root / "hasty"
    hasty.write_text("#!/bin/sh\nexec <&-\necho too hasty >&2\nexit 3\n")
    hasty.chmod(0o755)
    for _ in range(10):
        _, outcome = await run(service, "hello", options(sandbox, executable=str(hasty)))
        assert outcome.code is OutcomeCode.START_FAILED
        assert "code 3" in outcome.detail
        assert "too hasty" in outcome.detail


async def test_option_refused_by_the_cli_is_reported(service: Service, sandbox: Sandbox) -> None:
    nowhere = {"PATH": str(sandbox.root)}  # without the programs that a sandbox is made of
    boxed = SessionOptions(cwd=str(sandbox.project), sandbox={"enabled": True}, env=nowhere)
    _, outcome = await run(service, "hello", boxed)
    assert outcome.code is OutcomeCode.START_FAILED
    assert "sandbox required but unavailable" in outcome.detail.lower()


async def test_option_unknown_to_the_cli_is_reported(start_service: StartService, sandbox: Sandbox, cli: Path) -> None:
    ways = {"stderr": "error: unknown option '--effort=low'", "crash": 1, "crash_at": "start"}
    service = await misbehaving(start_service, cli, ways)
    _, outcome = await run(service, "hello", options(sandbox))
    assert (outcome.code, outcome.error_code) == (OutcomeCode.START_FAILED, "INVALID_ARGUMENT")
    assert "no --effort" in outcome.detail


async def test_a_definition_that_no_version_takes_is_refused_before_anything_starts(
    service: Service, sandbox: Sandbox
) -> None:
    with pytest.raises(InvalidArgument, match=r"reviewer\.description"):
        await service.create("hello", options(sandbox, agents={"reviewer": {}}))
    assert service.sessions() == []


async def test_a_process_that_never_says_that_it_is_ready_is_abandoned(
    start_service: StartService, sandbox: Sandbox, cli: Path
) -> None:
    service = await misbehaving(start_service, cli, {"no_init": True}, start_timeout_ms=300)
    session, outcome = await run(service, "hello", options(sandbox))
    assert outcome.code is OutcomeCode.START_FAILED
    assert "initialize" in outcome.detail
    await session.closed()
    assert not session.live


async def test_a_process_that_refuses_to_get_ready_is_abandoned(
    start_service: StartService, sandbox: Sandbox, cli: Path
) -> None:
    service = await misbehaving(start_service, cli, {"init_error": "not today"})
    _, outcome = await run(service, "hello", options(sandbox))
    assert outcome.code is OutcomeCode.START_FAILED
    assert "not today" in outcome.detail


@pytest.mark.parametrize("moment", ["first_event", "mid_turn", "mid_line"])
@pytest.mark.parametrize("how", [7, "SIGSEGV"])
async def test_a_crash_in_mid_turn_comes_with_the_last_words(
    start_service: StartService, sandbox: Sandbox, cli: Path, moment: str, how: int | str
) -> None:
    ways = {"stderr": "panic: the end", "crash": how, "crash_at": moment}
    service = await misbehaving(start_service, cli, ways)
    session, outcome = await run(service, "hello", options(sandbox))
    assert (outcome.code, session.state) == (OutcomeCode.CRASHED, State.ERROR)
    assert "panic: the end" in outcome.detail
    assert str(how) in outcome.detail


async def test_crash_closes_the_open_question(start_service: StartService, sandbox: Sandbox, cli: Path) -> None:
    ways = {"ask": True, "crash": 1, "crash_at": "question"}
    service = await misbehaving(start_service, cli, ways)
    session, outcome = await run(service, "hello", options(sandbox))
    assert outcome.code is OutcomeCode.CRASHED
    assert (session.questions, service.broker.pending()) == ([], [])


async def test_a_process_that_dies_while_idle_is_replaced(
    start_service: StartService, sandbox: Sandbox, cli: Path
) -> None:
    service = await misbehaving(start_service, cli, {})
    session, outcome = await run(service, "hello", options(sandbox))
    assert outcome.ok
    assert session.pid is not None
    os.kill(session.pid, 9)
    await until(session, lambda: not session.live)
    assert session.state is State.IDLE
    assert (await say(service, session, "again")).ok


@pytest.mark.parametrize(
    ("way", "kept"),
    [
        ("malformed_line", Noise),
        ("noise", Noise),
        ("unknown_frames", Message),
    ],
)
async def test_invalid_data_is_ignored_and_kept(
    start_service: StartService, sandbox: Sandbox, cli: Path, way: str, kept: type[Noise] | type[Message]
) -> None:
    plain = await misbehaving(start_service, cli, {})
    before, _ = await run(plain, "hello", options(sandbox))
    service = await misbehaving(start_service, cli, {way: True})
    session, outcome = await run(service, "hello", options(sandbox))
    assert outcome.ok
    assert len(events(session, kept)) > len(events(before, kept))
    unknown = {item.raw.get("type") for item in events(session, Message)} & {"telepathy"}
    assert unknown == ({"telepathy"} if way == "unknown_frames" else set())


async def test_a_line_of_megabytes_is_read_whole(start_service: StartService, sandbox: Sandbox, cli: Path) -> None:
    service = await misbehaving(start_service, cli, {"giant_line": 3 << 20})
    turn = await service.create("hello", options(sandbox))
    with turn.session.log.subscribe() as watched:  # the log keeps only so much of it
        assert (await end_of(turn)).ok
        turn.session.log.close()
        sizes = [item.size async for item in watched if isinstance(item, Message)]
    assert max(sizes) > 3 << 20
    assert events(turn.session, Noise) == []


async def test_unknown_request_is_refused(start_service: StartService, sandbox: Sandbox, cli: Path) -> None:
    service = await misbehaving(start_service, cli, {"unknown_control": True})
    _, outcome = await run(service, "hello", options(sandbox))
    assert "read_minds is not supported" in outcome.result


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("hook_callback", '"permissionDecision": "deny"'),
        ("can_use_tool", '"behavior": "deny"'),
        ("mcp_message", "cannot be read"),
    ],
)
async def test_a_request_that_cannot_be_read_is_denied_at_once(
    start_service: StartService, sandbox: Sandbox, cli: Path, kind: str, answer: str
) -> None:
    service = await misbehaving(start_service, cli, {"deep_request": kind})
    _, outcome = await run(service, "hello", options(sandbox))
    assert answer in outcome.result


async def test_a_second_result_of_the_same_turn_ends_the_process(
    start_service: StartService, sandbox: Sandbox, cli: Path
) -> None:
    service = await misbehaving(start_service, cli, {"duplicate_result": True})
    session, first = await run(service, "hello", options(sandbox))
    assert first.ok
    await until(session, lambda: session.state is State.ERROR)
    assert session.outcome is not None
    assert session.outcome.code is OutcomeCode.PROTOCOL_VIOLATION
    assert [one.type for one in events(session, Message)].count("result") == 1
    assert not session.live
    assert (await say(service, session, "again")).ok, "another process goes on with the session"


async def test_a_question_withdrawn_at_once_is_gone(start_service: StartService, sandbox: Sandbox, cli: Path) -> None:
    service = await misbehaving(start_service, cli, {"cancel_question": True})
    turn = await service.create("hello", options(sandbox))
    session = turn.session
    assert (await end_of(turn)).ok
    assert session.questions == []


async def test_a_session_is_released_although_its_hub_cannot_be_left(
    sandbox: Sandbox, environment: dict[str, str]
) -> None:
    @asynccontextmanager
    async def hub(_: ClientEnvironment) -> AsyncIterator[None]:
        yield None
        raise OSError("the hub cannot be left")

    settings, callers = load_settings({}, state_dir=sandbox.root / "state"), ExpectedCallers(hub_for=hub)
    async with Service(settings, environment, callers=callers, **service_parts()) as service:
        caller = Caller(LOCAL, ClientEnvironment(str(sandbox.project), environment, "one"))
        session, outcome = await run(service, "hello", options(sandbox), caller=caller)
        assert outcome.code is OutcomeCode.COMPLETED
        session.park()
        await session.closed()
        assert not session.deps.stores.leases.held(session.id)
