"""One writer per session, among all servers of a user."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from claude_code_mcp.errors import ProcessFailed, SessionBusy
from claude_code_mcp.store.session_records import Leases

SESSION = "11111111-1111-4111-8111-111111111111"
OTHER = "22222222-2222-4222-8222-222222222222"

HOLDER = """
import sys
from pathlib import Path
from claude_code_mcp.store.session_records import Leases
lease = Leases(Path(sys.argv[1]), sys.argv[2]).take(sys.argv[3])
print("taken", flush=True)
if sys.stdin.readline() == "release\\n":
    lease.release()
    print("released", flush=True)
    sys.stdin.readline()
"""

PARENT = """
import subprocess, sys
from pathlib import Path
from claude_code_mcp.store.session_records import Leases
lease = Leases(Path(sys.argv[1]), sys.argv[2]).take(sys.argv[3])
subprocess.run([sys.executable, "-c", "import sys; print('taken', flush=True); sys.stdin.read(); print('bye')"])
"""


@pytest.fixture
def leases(tmp_path: Path) -> Leases:
    return Leases(tmp_path / "state", str(tmp_path / "config"))


@contextmanager
def another_server(tmp_path: Path, program: str = HOLDER) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lease on the session."""
    command = [sys.executable, "-c", program, str(tmp_path / "state"), str(tmp_path / "config"), SESSION]
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
    sibling = Leases(tmp_path / "state", str(tmp_path / "config"))
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


def test_servers_with_transcripts_of_their_own_do_not_disturb_each_other(tmp_path: Path) -> None:
    one, two = (Leases(tmp_path / "state", str(tmp_path / name)) for name in ("one", "two"))
    held = one.take(SESSION)
    two.take(SESSION).release()
    held.release()


def test_every_spelling_of_the_directory_of_the_transcripts_is_the_same(leases: Leases, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "config")
    held = leases.take(SESSION)
    for spelling in (tmp_path / "link", tmp_path / "config" / ".." / "config"):
        with pytest.raises(SessionBusy):
            Leases(tmp_path / "state", str(spelling)).take(SESSION)
    held.release()


def test_locks_are_for_the_user_alone(leases: Leases, tmp_path: Path) -> None:
    leases.take(SESSION).release()
    (directory,) = (tmp_path / "state" / "locks").iterdir()
    assert os.stat(directory).st_mode & 0o077 == 0


def test_a_lock_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("not a directory")
    with pytest.raises(ProcessFailed, match=f"The lock of session {SESSION} cannot be taken"):
        Leases(tmp_path / "state", str(tmp_path)).take(SESSION)
