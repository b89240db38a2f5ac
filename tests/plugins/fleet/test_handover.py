"""A session goes on at another machine: two homes and two state directories on one fleet."""

import asyncio
import uuid
import zlib
from pathlib import Path
from typing import get_args

import pytest

from claude_code_mcp.core.errors import InvalidArgument, PermissionDenied, SessionBusy, SessionNotFound
from claude_code_mcp.core.model.caller import LOCAL, LOCAL_CALLER
from claude_code_mcp.core.model.events import QuestionOpened
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.state.state_directory import database_in
from claude_code_mcp.core.transcripts.cost_table import Grouping
from claude_code_mcp.plugins.fleet import names
from claude_code_mcp.plugins.fleet.connection import FleetConnection, connect
from claude_code_mcp.plugins.fleet.handover import SessionTaker
from claude_code_mcp.plugins.fleet.keeper import Keeper, KeptSecrets
from claude_code_mcp.plugins.fleet.nats_server import Running
from claude_code_mcp.plugins.fleet.ownership import OwnershipBucket
from claude_code_mcp.plugins.fleet.records import RecordStore
from claude_code_mcp.plugins.fleet.tickets import new_seed
from claude_code_mcp.plugins.fleet.transcripts import LostSession
from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import agent, script, tool
from tests.core.sessions.support import end_of, event, run, say
from tests.support.repositories import git, repository
from tests.support.waiting import until_true

from .machines import Ledger, OpenSeal, machine
from .test_working_trees import contents, state


@pytest.mark.soak  # with the command, between processes: test_moving.py
async def test_a_session_moves_with_its_history_its_tree_and_its_costs(
    fleet: FleetConnection, tmp_path: Path, model: ScriptedModelThread
) -> None:
    ledger, source = Ledger(), repository(tmp_path / "source")
    async with (
        machine("one", fleet, ledger, tmp_path, model.url) as one,
        machine("two", fleet, ledger, tmp_path, model.url) as two,
    ):
        given = SessionOptions(
            cwd=str(source / "sub"), allowed_tools=("Bash", "Task"), append_system_prompt="Be brief.", max_budget_usd=9
        )
        work = tool("Bash", command="echo new > made.txt && git -C .. commit -qam x --allow-empty && echo b >> b.txt")
        first = script("remember the word heron", work, agent("look", script("sub", "seen")), "I will")
        session, outcome = await run(one.service, first, given)
        assert outcome.ok, outcome
        spent = session.costs.spent_usd
        await one.mover.give(session.id, LOCAL_CALLER)
        with pytest.raises(SessionNotFound):
            one.service.session(session.id)
        adopted = await two.mover.take(session.id, LOCAL, str(tmp_path / "there"))
        assert (adopted.turn_lost, adopted.superseded) == (False, None)
        assert contents(tmp_path / "there") == contents(source)
        assert state(tmp_path / "there") == state(source)
        outcome = await say(two.service, session.id, script("go on", tool("Bash", command="pwd"), "at ${tool_result}"))
        assert outcome.result == f"at {tmp_path / 'there' / 'sub'}"
        last = model.requests[-1]
        assert "remember the word heron" in str(last.body)
        assert "Be brief." in last.system
        there = two.service.session(session.id)
        assert there.options.max_budget_usd == 9
        assert there.costs.spent_usd > spent > 0
        # What the fleet has said to be elsewhere is counted there alone, however costs are grouped.
        for by in get_args(Grouping):
            assert (await one.service.stored.costs(by)).total.sessions == 1
        one.replica.note_elsewhere([session.id])
        for by in get_args(Grouping):
            assert (await one.service.stored.costs(by)).total.sessions == 0
            assert (await two.service.stored.costs(by)).total.usd >= there.costs.spent_usd * 0.999
        # The subagent's own transcript and what is known of it came along.
        beside = two.local_transcript(session.id).with_suffix("") / "subagents"
        assert sorted(path.suffixes[-1] for path in beside.iterdir()) == [".json", ".jsonl"]
        # And back, where the first machine has an older state of everything.
        git(source, "stash", "-q", "-u")
        git(source, "stash", "drop", "-q")
        await two.mover.give(session.id, LOCAL_CALLER)
        await one.mover.take(session.id, LOCAL, str(source))
        assert state(source) == state(tmp_path / "there")
        assert (await say(one.service, session.id, script("again", "home"))).result == "home"
        assert "go on" in str(model.requests[-1].body)
        assert one.service.session(session.id).costs.spent_usd > there.costs.spent_usd


@pytest.mark.soak  # test_story.py
async def test_a_turn_that_was_lost_with_its_machine_says_so_and_the_session_continues(
    fleet: FleetConnection, tmp_path: Path, model: ScriptedModelThread
) -> None:
    ledger, cwd = Ledger(), tmp_path / "work"
    cwd.mkdir()
    async with (
        machine("one", fleet, ledger, tmp_path, model.url) as one,
        machine("two", fleet, ledger, tmp_path, model.url) as two,
    ):
        session, _ = await run(one.service, script("remember the word heron", "yes"), SessionOptions(cwd=str(cwd)))
        risky = script("risky", tool("Bash", command="touch done"), "done")
        turn = await one.service.send(session.id, risky, key="k")
        await event(session, QuestionOpened)
        await one.replica.complete(session.id)
        # The machine is gone: another one may have the session.
        ledger.release(session.id)
        taker = SessionTaker(two.mover, two.holdings, tmp_path / "taken")
        taken = await taker.take(session.id, LOCAL)
        assert "1 open question" in taken.lost_turn
        assert "Bash" in taken.lost_turn
        # Asked again by a gateway that has lost the answer: what was lost is said again, and nothing is taken twice.
        assert await taker.take(session.id, LOCAL) == taken
        assert len([*(tmp_path / "taken").iterdir()]) == 1
        found = await two.service.find(session.id)
        assert found.outcome is not None
        assert found.outcome.code == "machine_lost"
        assert "1 open question" in found.outcome.detail
        assert found.state is State.INTERRUPTED
        # Sent again by somebody who lost the answer: it is known, and does not run twice.
        repeated = await two.service.send(session.id, risky, key="k")
        assert repeated.repeated
        assert (await say(two.service, session.id, script("go on", "here"))).result == "here"
        assert "remember the word heron" in str(model.requests[-1].body)
        # What the first machine still runs is refused when it comes to the store.
        await one.service.interrupt(session.id)
        await end_of(turn)
        with pytest.raises(LostSession):
            await one.replica.complete(session.id)
        assert one.lost == [session.id]


@pytest.mark.soak  # it is refused: the test above
async def test_entries_written_after_losing_a_session_are_moved_aside_on_its_return(
    fleet: FleetConnection, tmp_path: Path, model: ScriptedModelThread
) -> None:
    ledger, cwd = Ledger(), tmp_path / "work"
    cwd.mkdir()
    async with (
        machine("one", fleet, ledger, tmp_path, model.url) as one,
        machine("two", fleet, ledger, tmp_path, model.url) as two,
    ):
        session, _ = await run(one.service, script("the first", "yes"), SessionOptions(cwd=str(cwd)))
        await one.replica.complete(session.id)
        ledger.release(session.id)
        await two.mover.take(session.id, LOCAL, str(cwd))
        # The first machine was only cut off, and does not know yet.
        assert (await say(one.service, session, script("a stale one", "stale"))).ok
        assert (await say(two.service, session.id, script("the second", "yes"))).ok
        await two.replica.complete(session.id)
        ledger.release(session.id)
        await one.service.relocation.forget_moved_session(session.id)
        one.replica.forget(session.id)
        adopted = await one.mover.take(session.id, LOCAL, str(cwd))
        assert adopted.superseded is not None
        assert "a stale one" in Path(adopted.superseded).read_text()  # noqa: ASYNC240
        assert (await say(one.service, session.id, script("the third", "yes"))).ok
        history = str(model.requests[-1].body)
        assert "the first" in history
        assert "the second" in history
        assert "a stale one" not in history


@pytest.mark.soak
async def test_tree_is_saved_after_each_turn_for_the_next_machine(
    fleet: FleetConnection, tmp_path: Path, model: ScriptedModelThread
) -> None:
    ledger, source = Ledger(), repository(tmp_path / "source")
    async with (
        machine("one", fleet, ledger, tmp_path, model.url) as one,
        machine("two", fleet, ledger, tmp_path, model.url) as two,
    ):
        given = SessionOptions(cwd=str(source), allowed_tools=("Bash",))
        session, _ = await run(one.service, script("go", tool("Bash", command="echo 1 > made.txt"), "done"), given)
        await one.mover.saved(session.id)
        await one.replica.complete(session.id)
        made = contents(source)
        # What is done after the last save is lost with the machine; what was saved is not.
        (source / "later.txt").write_text("never saved")
        ledger.release(session.id)
        await two.mover.take(session.id, LOCAL, str(tmp_path / "there"))
        assert contents(tmp_path / "there") == made
        # A tree that cannot be saved is told, and never replaced by an older one without being asked for.
        (tmp_path / "there/.git/MERGE_HEAD").write_text(git(source, "rev-parse", "HEAD") + "\n")
        assert (await say(two.service, session.id, script("again", "done"))).ok
        await two.mover.saved(session.id)
        await two.replica.complete(session.id)
        ledger.release(session.id)
        with pytest.raises(InvalidArgument, match=r"MERGE_HEAD"):
            await one.mover.take(session.id, LOCAL, str(tmp_path / "back"))
        await one.mover.take(session.id, LOCAL, str(tmp_path / "back"), older_tree=True)
        assert contents(tmp_path / "back") == made


async def test_secrets_travel_sealed_and_are_opened_for_the_holder_alone(
    engine: Running, fleet: FleetConnection, tmp_path: Path, model: ScriptedModelThread
) -> None:
    ledger, cwd, bucket = Ledger(), tmp_path / "work", await OwnershipBucket.opened(fleet)
    cwd.mkdir()
    ids = ("one", "two", "three")
    connections = [await connect(engine.url, inbox_prefix=names.inbox(each)) for each in ids]
    seals = [KeptSecrets(connection, each) for connection, each in zip(connections, ids, strict=True)]
    async with (
        Keeper(fleet, bucket, new_seed()).serving(),
        machine("one", fleet, ledger, tmp_path, model.url, seals[0]) as one,
        machine("two", fleet, ledger, tmp_path, model.url, seals[1]) as two,
        machine("three", fleet, ledger, tmp_path, model.url, seals[2]) as three,
    ):
        given = SessionOptions(cwd=str(cwd), env={"TOKEN": "s3cr3t-token"}, allowed_tools=("Bash",))
        session, _ = await run(one.service, script("hello", "hello"), given)
        with pytest.raises(InvalidArgument, match="checkout"):
            await one.mover.give(session.id, LOCAL_CALLER)
        await one.mover.give(session.id, LOCAL_CALLER, without_tree=True)
        kv = await fleet.jetstream.key_value("fleet_records")
        assert b"s3cr3t" not in zlib.decompress((await kv.get(session.id)).value or b"")
        document = await one.records.read(session.id)
        assert (document.left_out, document.record.options.env) == (("env",), {})
        await bucket.claim(session.id, LOCAL, "two")
        with pytest.raises(PermissionDenied, match="hold"):
            await three.mover.take(session.id, LOCAL, str(cwd))
        with pytest.raises(SessionNotFound):
            await three.service.find(session.id)
        # A seal is for one session.
        other = str(uuid.uuid4())
        await bucket.claim(other, LOCAL, "two")
        with pytest.raises(InvalidArgument, match="sealed"):
            await seals[1].unseal(other, document.sealed)
        await two.mover.take(session.id, LOCAL, str(cwd))
        length = script("go", tool("Bash", command="echo ${#TOKEN}"), "${tool_result}")
        assert (await say(two.service, session.id, length)).result == "12"
    for connection in connections:
        await connection.close()


@pytest.mark.soak
async def test_a_session_busy_is_given_away_only_when_it_may_be_interrupted(
    fleet: FleetConnection, tmp_path: Path, model: ScriptedModelThread
) -> None:
    source = repository(tmp_path / "source")
    async with machine("one", fleet, Ledger(), tmp_path, model.url) as one:
        turn = await one.service.create(
            script("risky", tool("Bash", command="touch x"), "done"), SessionOptions(cwd=str(source))
        )
        await event(turn.session, QuestionOpened)
        with pytest.raises(SessionBusy):
            await one.mover.give(turn.session.id, LOCAL_CALLER)
        assert one.holdings.holding_of(turn.session.id) is not None
        given = await one.mover.give(turn.session.id, LOCAL_CALLER, interrupt=True)
        assert given.tree is not None
        assert (await turn.outcome()).code == "interrupted"
        assert (await one.records.read(turn.session.id)).questions == ()


@pytest.mark.soak
async def test_a_machine_that_was_restarted_keeps_the_tree_and_says_when_it_is_older_than_the_conversation(
    fleet: FleetConnection, tmp_path: Path, model: ScriptedModelThread
) -> None:
    ledger, source = Ledger(), repository(tmp_path / "source")
    async with (
        machine("one", fleet, ledger, tmp_path, model.url) as one,
        machine("two", fleet, ledger, tmp_path, model.url) as two,
    ):
        session, _ = await run(one.service, script("go", "yes"), SessionOptions(cwd=str(source)))
        await one.mover.saved(session.id)
        await one.replica.complete(session.id)
        before = await one.records.read(session.id)
        assert before.tree is not None
        assert not before.tree_behind
        # The next process of this machine has saved nothing yet, and a turn begins in it.
        restarted = RecordStore(fleet, database_in(tmp_path / "one" / "state"), OpenSeal())
        restarted.trees_behind.add(session.id)
        record = before.record.model_copy(update={"revision": before.record.revision + 1})
        await restarted.put(record, one.holdings.known[session.id])
        after = await one.records.read(session.id)
        assert after.tree == before.tree
        assert after.tree_behind
        # It dies when the turn has ended, and its files were not saved.
        ledger.release(session.id)
        adopted = await two.mover.take(session.id, LOCAL, str(tmp_path / "there"))
        assert adopted.tree_behind
        assert adopted.without_tree is None
        assert not adopted.turn_lost
        assert contents(tmp_path / "there") == contents(source)
        assert not (await two.records.read(session.id)).tree_behind, "it is said once"


async def test_a_message_that_waits_while_its_session_is_given_away_does_not_run_there(
    fleet: FleetConnection, tmp_path: Path, model: ScriptedModelThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was admitted before: the machine held the session then."""
    ledger, cwd = Ledger(), tmp_path / "work"
    cwd.mkdir()
    async with machine("one", fleet, ledger, tmp_path, model.url) as one:
        session, _ = await run(one.service, script("go", "yes"), SessionOptions(cwd=str(cwd)))
        copied, almost_given, let_through = one.mover._copied, asyncio.Event(), asyncio.Event()

        async def hold_up(session_id: str) -> None:
            await copied(session_id)
            almost_given.set()
            await let_through.wait()

        monkeypatch.setattr(one.mover, "_copied", hold_up)
        giving = asyncio.ensure_future(one.mover.give(session.id, LOCAL_CALLER, without_tree=True))
        await almost_given.wait()
        sending = asyncio.ensure_future(one.service.send(session.id, script("too late", "x")))
        await until_true(lambda: session.process.starting._waiters)
        let_through.set()
        await giving
        with pytest.raises(SessionBusy, match="moved away"):
            await sending
        assert not any("too late" in str(request.body) for request in model.requests)
