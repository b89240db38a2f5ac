"""One writer per session, among all servers of a user."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from claude_code_mcp.core.errors import ProcessFailed, SessionBusy
from claude_code_mcp.core.state.database import Database
from claude_code_mcp.core.state.session_holders import SessionHolders
from claude_code_mcp.core.state.session_leases import Leases

SESSION = "11111111-1111-4111-8111-111111111111"
OTHER = "22222222-2222-4222-8222-222222222222"

HOLDER = """
import sys
from pathlib import Path
from claude_code_mcp.core.state.session_leases import Leases
lease = Leases(Path(sys.argv[1])).take(sys.argv[2])
print("taken", flush=True)
if sys.stdin.readline() == "release\\n":
    lease.release()
    print("released", flush=True)
    sys.stdin.readline()
"""

PARENT = """
import subprocess, sys
from pathlib import Path
from claude_code_mcp.core.state.session_leases import Leases
lease = Leases(Path(sys.argv[1])).take(sys.argv[2])
subprocess.run([sys.executable, "-c", "import sys; print('taken', flush=True); sys.stdin.read(); print('bye')"])
"""


@pytest.fixture
def leases(tmp_path: Path) -> Leases:
    return Leases(tmp_path / "state")


@contextmanager
def another_server(tmp_path: Path, program: str = HOLDER) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lease on the session."""
    command = [sys.executable, "-c", program, str(tmp_path / "state"), SESSION]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "taken\n"
        yield process


def test_a_session_in_use_by_another_server_is_busy(leases: Leases, tmp_path: Path) -> None:
    with another_server(tmp_path):
        with pytest.raises(SessionBusy) as caught:
            leases.take(SESSION)
        assert caught.value.data == {"session_id": SESSION}
        leases.take(OTHER).release()


def test_a_released_session_is_free_for_another_server(leases: Leases, tmp_path: Path) -> None:
    with another_server(tmp_path) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write("release\n")
        server.stdin.flush()
        assert server.stdout.readline() == "released\n"
        leases.take(SESSION).release()


def test_a_killed_server_holds_nothing_even_if_its_children_live_on(leases: Leases, tmp_path: Path) -> None:
    with another_server(tmp_path, PARENT) as server:
        server.kill()
        server.wait()
        leases.take(SESSION).release()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.close()
        assert server.stdout.read() == "bye\n", "the child was alive all the time"


def test_two_services_of_one_process_respect_each_other(leases: Leases, tmp_path: Path) -> None:
    sibling = Leases(tmp_path / "state")
    held = leases.take(SESSION)
    with pytest.raises(SessionBusy):
        sibling.take(SESSION)
    held.release()
    sibling.take(SESSION).release()


def test_releasing_twice_does_not_take_the_lease_from_its_next_holder(leases: Leases, tmp_path: Path) -> None:
    first = leases.take(SESSION)
    first.release()
    with another_server(tmp_path):
        first.release()
        with pytest.raises(SessionBusy):
            leases.take(SESSION)


def test_locks_are_for_the_user_alone(leases: Leases, tmp_path: Path) -> None:
    leases.take(SESSION).release()
    directory = tmp_path / "state" / "locks"
    assert [os.stat(path).st_mode & 0o077 for path in (directory, *directory.iterdir())] == [0, 0]


def test_a_lock_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("not a directory")
    with pytest.raises(ProcessFailed, match=f"The lock of session {SESSION} cannot be taken"):
        Leases(tmp_path / "state").take(SESSION)


def test_session_with_unknown_holder_is_not_free(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("not a directory")
    leases = Leases(tmp_path / "state")
    with pytest.raises(ProcessFailed, match="cannot be taken"):
        leases.held(SESSION)
    assert leases.may_be_held(SESSION)
    (tmp_path / "state").unlink()
    assert not leases.may_be_held(SESSION)


def test_unverifiable_id_counts_as_taken(leases: Leases, monkeypatch: pytest.MonkeyPatch) -> None:
    leases.take(OTHER).release()
    assert (leases.was_ever_leased(OTHER), leases.was_ever_leased(SESSION)) == (True, False)

    def failing(*_: object, **__: object) -> os.stat_result:
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as now:
        now.setattr(os, "lstat", failing)
        assert leases.was_ever_leased(SESSION)


def test_a_server_is_woken_by_who_wants_its_session_and_by_nothing_else_that_is_written(tmp_path: Path) -> None:
    database = Database(tmp_path)
    holding, wanting = SessionHolders(database, "the first"), SessionHolders(database, "the second")
    file = holding.requests_file()
    holding.announce(SESSION, "token")
    os.utime(file, (0, 0))
    wanting.question_opened(SESSION, "question", "May I?", 1.0)
    holding.question_opened(SESSION, "another", "May I?", 2.0)
    assert file.stat().st_mtime == 0
    holder = wanting.want(SESSION)
    assert holder is not None
    assert holder.description == "the first"
    assert file.stat().st_mtime > 0
    assert holding.wanted() == [SESSION]
    holding.close()
    wanting.close()
