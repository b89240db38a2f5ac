"""`sessions move`, and the fleet part of `sessions delete` on a machine of a fleet."""

import argparse
import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ...client.connections import CallFailed, NoServer, NotRunning
from ...client.conventions import Unavailable, exit_code_of, failed, print_outcome
from ...client.live_sessions import LiveSessions, losses
from ...client.session_files import add_session_command
from ...client.targets import add_target, target_of
from ...core.config import Settings
from ...core.errors import ClaudeCodeError, InvalidArgument, UpstreamUnavailable
from ...core.model.text import visible
from .commands import connected_machine, directory_of

if TYPE_CHECKING:
    from ...core.sessions.stored.session_library import SessionLibrary
    from .connection import FleetConnection
    from .session_copy import OrphanedCopies

_NO_FLEET = "Sessions can be moved only in a fleet. `claude-code-mcp fleet up` starts one."
_REMOVAL_SECONDS = 10.0
_REMOVAL_PAUSE = 0.2


def add_move(actions: Any) -> None:
    move = add_session_command(actions, "move", "move it and its working tree to another machine of the fleet", _move)
    move.add_argument("--to", required=True, metavar="MACHINE", help="machine name or id; `fleet status` lists them")
    move.add_argument("--wait", action="store_true", help="wait for the running turn to end instead of refusing")
    move.add_argument(
        "--without-tree", action="store_true", help="move the session even if its files cannot be saved and stay behind"
    )
    add_target(move)


def _move(arguments: argparse.Namespace) -> int:
    """Asks the gateway, which is shared by the clients of a fleet as a server is shared by the clients of one
    machine."""
    try:
        client = target_of(arguments).join()
    except NoServer:
        if arguments.url:
            raise
        raise Unavailable(_NO_FLEET) from None
    with client:
        sessions = LiveSessions(client)
        if not sessions.is_in_fleet():
            raise Unavailable(_NO_FLEET)
        more = {"wait": arguments.wait, "confirm": arguments.without_tree}
        try:
            found = sessions.find(arguments.session)
            moved = sessions.manage(
                found, "move", machine=arguments.to, **{name: True for name, value in more.items() if value}
            )
        except CallFailed as error:
            return failed(str(error), exit_code_of(error.code))
        except NotRunning as error:
            raise Unavailable(
                f"{error}; the session is still on its machine, or continues with its next message"
            ) from None
    return print_outcome(arguments, moved, visible(" ".join([moved["message"], *losses(moved)])))


@asynccontextmanager
async def removing_copy(settings: Settings, sessions: "SessionLibrary", session_id: str) -> AsyncIterator[None]:
    """Context for the deletion of a session on this machine's disk: also removes the fleet's copy. If that fails, the
    deletion is recorded on disk, the machine's runner finishes it, and the user is informed. Raises HeldByOtherMachine,
    before the deletion, if another machine continues the session."""
    is_removed = False
    async with contextlib.AsyncExitStack() as stack:
        copies = await _reached_copies(settings, sessions, session_id, stack)
        yield
        is_removed = copies is not None and await _copy_removed(settings, copies, session_id)
    if not is_removed:
        print("The fleet's copy is removed when this machine's runner next reaches the fleet.", file=sys.stderr)


async def _reached_copies(
    settings: Settings, sessions: "SessionLibrary", session_id: str, stack: contextlib.AsyncExitStack
) -> "OrphanedCopies | None":
    """The copies of this machine's sessions, with a connection that `stack` closes; None while the fleet cannot be
    reached."""
    try:
        from . import nats_client  # noqa: F401, PLC0415 - of an extra, and slow to import

        connection, machine_id = await connected_machine(settings)
    except (ImportError, ClaudeCodeError, OSError):
        return None
    stack.push_async_callback(connection.abandon)
    copies = _orphaned_copies(settings, sessions, connection, machine_id)
    try:
        await copies.check_held_here(session_id)
    except UpstreamUnavailable:
        return None
    return copies


def _orphaned_copies(
    settings: Settings, sessions: "SessionLibrary", connection: "FleetConnection", machine_id: str
) -> "OrphanedCopies":
    from ...core.state.state_directory import database_in  # noqa: PLC0415
    from .keeper import KeeperOwnership, KeptSecrets  # noqa: PLC0415
    from .records import RecordStore  # noqa: PLC0415
    from .session_copy import OrphanedCopies  # noqa: PLC0415
    from .transcripts import TranscriptStore  # noqa: PLC0415

    records = RecordStore(connection, database_in(settings.state_dir), KeptSecrets(connection, machine_id))
    ownership = KeeperOwnership(connection, machine_id)
    transcripts = TranscriptStore(connection)
    return OrphanedCopies(sessions.catalog.marks, records, transcripts, ownership, machine_id, sessions.record_of)


async def _copy_removed(settings: Settings, copies: "OrphanedCopies", session_id: str) -> bool:
    """Whether the copy of a session deleted here is gone, after some seconds at the latest."""
    from .host import only_process  # noqa: PLC0415

    try:
        with only_process(directory_of(settings) / "runner.lock", "A runner is already running on this machine."):
            pass
    except InvalidArgument:
        # The runner may still have data of the session to write. It removes the copy when it sees the mark.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REMOVAL_SECONDS):
                while session_id in await copies.left():  # noqa: ASYNC110 - of another process
                    await asyncio.sleep(_REMOVAL_PAUSE)
    else:
        with contextlib.suppress(ClaudeCodeError):  # the mark stays, so the runner removes the copy later
            await copies.remove(session_id)
    return session_id not in await copies.left()
