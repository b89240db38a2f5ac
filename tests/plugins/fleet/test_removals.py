"""People who are removed at a gateway while a machine is away: what they have there ends when it is back."""

import asyncio
import signal
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from tests.support.fleet import claude_processes, gone_machines, processes_of

pytest.importorskip("webauthn", reason="the extra `oauth` is not installed")

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.state.state_directory import database_in
from claude_code_mcp.plugins.fleet import names
from claude_code_mcp.plugins.fleet.connection import FleetConnection
from claude_code_mcp.plugins.fleet.gateway import Gateway
from claude_code_mcp.plugins.fleet.keeper import Keeper, KeeperOwnership
from claude_code_mcp.plugins.fleet.ownership import OwnershipBucket
from claude_code_mcp.plugins.fleet.removals import MachineRemovals, Removals
from claude_code_mcp.plugins.fleet.tickets import new_seed
from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import script, text
from tests.plugins.team.embedded import Embedded, connected
from tests.plugins.team.test_sign_in import call
from tests.support.ports import free_port
from tests.support.waiting import HANG_SECONDS, until, until_true

from .conftest import in_own_task
from .programs import NamedFleet, choose
from .test_push import inbox_of
from .test_sign_in import SignInComputer


class SharingPlace(SignInComputer):
    """One whose people can share their sessions."""

    def variables(self) -> dict[str, str]:
        return {**super().variables(), "CLAUDE_CODE_MCP_TOOLSETS": "sessions,care"}


async def begun_without_end(client: Client, laptop: SharingPlace) -> str:
    """The id of a session at work on the laptop."""
    endless = script("a long story", text("word " * 20, chunks=20, until=str(laptop.root / "never")))
    there = {"machine": "laptop", "workingDirectory": str(laptop.project)}
    made = await call(client, "claude_create_session", prompt=endless, **there)
    assert made.get("machine") == "laptop", made
    return str(made["sessionId"])


@pytest.mark.soak
async def test_people_who_are_removed_while_a_machine_is_frozen_or_the_fleet_down_have_nothing_running_there_later(
    tmp_path: Path, model: ScriptedModelThread
) -> None:
    server, laptop = SharingPlace(tmp_path / "server", model.url), SharingPlace(tmp_path / "laptop", model.url)
    server.lease_ms = 10_000
    served = Embedded(server.root, server, server.variables(), free_port())
    http, listen = ("--http", f"127.0.0.1:{served.port}", "--oauth"), f"127.0.0.1:{free_port()}"
    async with AsyncExitStack() as stack:
        with server.up(*http, listen=listen):
            runner = stack.enter_context(laptop.joined("laptop", ticket=server.ticket))
            async with (
                await served.person("ann", "--group", "leads") as of_ann,
                await served.person("ben", "--group", "leads") as of_ben,
                await served.person("cem") as of_cem,
                connected(served, of_ann, "2026-07-28") as (ann, _),
                connected(served, of_ben, "2026-07-28") as (ben, _),
                connected(served, of_cem, "2026-07-28") as (cem, _),
            ):
                hers, *_ = [await begun_without_end(client, laptop) for client in (ann, ben, cem)]
                shared = {"sessionId": hers, "action": "share", "text": "ben"}
                assert "error" not in await call(ann, "claude_manage_session", **shared)
                await until_true(lambda: len(claude_processes(runner.pid)) == 3)
                runner.send_signal(signal.SIGSTOP)
                try:
                    await asyncio.to_thread(until, lambda: "laptop" in gone_machines(server))
                    served.command("remove", "ann", "--yes")
                finally:
                    runner.send_signal(signal.SIGCONT)
                # Hers ends, and that of nobody else; by the notice that waited for it, or by what the fleet has noted.
                await until_true(lambda: len(claude_processes(runner.pid)) == 2, "her session goes on")
                async with asyncio.timeout(HANG_SECONDS):  # what she had shared ends with it
                    while [row.get("owner") for row in await listed_for(ben)] != [None]:  # noqa: ASYNC110 - nobody tells of it
                        await asyncio.sleep(0.2)
                assert (await listed_for(ben))[0]["isActive"]
        assert "Traceback" not in server.errors
        served.command("remove", "ben", "--yes")
        assert len(claude_processes(runner.pid)) == 2, "nobody has told the machine yet"
        with server.up(*http, listen=listen):
            await until_true(lambda: len(claude_processes(runner.pid)) == 1, "his session goes on")
    until(lambda: not processes_of([server, laptop]), "something was left running")
    assert "Traceback" not in server.errors + laptop.errors


async def listed_for(client: Client) -> list[dict[str, Any]]:
    return list((await call(client, "claude_list_sessions"))["sessions"])


async def test_each_removal_is_done_once_and_none_from_before_a_machine_was_there(
    fleet: FleetConnection, tmp_path: Path
) -> None:
    ended: list[str] = []

    async def end(principal: str) -> None:
        ended.append(principal)

    async def owners() -> list[str]:
        return ["local", "ann", "ben", "cem"]

    gateway, bucket = Removals(fleet), await OwnershipBucket.opened(fleet)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(in_own_task(Keeper(fleet, bucket, new_seed(), gateway.verbs).serving()))
        asking = KeeperOwnership(replace(fleet, client=await inbox_of(fleet, "m", stack)), "m")
        await gateway.note("ann")

        def machine() -> MachineRemovals:
            """As after a restart: it knows what is on its disk."""
            return MachineRemovals(asking, database_in(tmp_path / "state"), owners, end)

        await machine().catch_up()
        assert ended == [], "it was not there yet when she was removed, and has what she has begun since"
        await gateway.note("ben")
        await gateway.note("dan")
        for _ in range(2):
            await machine().catch_up()
        assert ended == ["ben"], "once"
        # Told at once, while it is there: then he is invited again, and goes on.
        await machine().ended("cem", await gateway.note("cem"))
        await machine().catch_up()
        assert ended == ["ben"]
        await gateway.note("cem")
        await gateway.note("ben")
        await machine().catch_up()
        assert ended == ["ben", "ben", "cem"]


async def test_old_removal_does_not_affect_a_person_invited_again(fleet: FleetConnection, tmp_path: Path) -> None:
    ended: list[str] = []
    present = ["local", "ben"]

    async def end(principal: str) -> None:
        ended.append(principal)

    async def owners() -> list[str]:
        return present

    gateway, bucket = Removals(fleet), await OwnershipBucket.opened(fleet)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(in_own_task(Keeper(fleet, bucket, new_seed(), gateway.verbs).serving()))
        asking = KeeperOwnership(replace(fleet, client=await inbox_of(fleet, "m", stack)), "m")
        machine = MachineRemovals(asking, database_in(tmp_path / "state"), owners, end)
        await machine.catch_up()
        await gateway.note("ann")
        await machine.catch_up()  # she has nothing here, then she is invited again and begins something
        present.append("ann")
        await gateway.note("ben")
        await machine.catch_up()
        assert ended == ["ben"]


async def test_a_removal_that_cannot_be_noted_is_not_mistaken_for_one_that_was(fleet: FleetConnection) -> None:
    named = NamedFleet(await fleet.jetstream.key_value(names.SESSIONS), [])
    gateway = Gateway(fleet, named, choose, load_settings({}))

    async def at_once() -> None: ...

    await fleet.jetstream.delete_key_value(names.REMOVALS)
    with pytest.raises(OSError, match="cannot be informed that ann"):
        await gateway.end_caller("ann", at_once)
    await gateway.close()
