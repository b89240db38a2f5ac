"""What is on the disk: for its owner alone, and believed only if nobody else could have written it."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from claude_code_mcp.core.audit.trail import RotatingJsonl
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.private_files import open_private, private_directory
from claude_code_mcp.core.state.documents import Documents
from claude_code_mcp.core.state.session_leases import Leases
from claude_code_mcp.core.state.session_records import SessionRecord, SessionRecords
from claude_code_mcp.core.state.spending import NotedAmount, Spending
from claude_code_mcp.core.state.state_directory import database_in
from claude_code_mcp.hub.auth.credentials import FileVault, NeedsAuthMemory
from claude_code_mcp.startup.greeting import first_answers

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes are a matter of POSIX")

SESSION = "6d00acf8-651f-44a7-860b-586a56b12dd3"


@pytest.fixture(params=[0o000, 0o022, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat(follow_symlinks=False).st_mode)


@pytest.mark.usefixtures("open_umask")
async def test_all_state_is_for_its_owner_alone(tmp_path: Path) -> None:
    state = tmp_path / "below" / "state"
    database = database_in(state)
    record = SessionRecord(
        session_id=SESSION, owner="alice", created_at=1, used_at=1, cwd=str(tmp_path), options=SessionOptions()
    )
    SessionRecords(database, "/config").write(record)
    Leases(state).take(SESSION).release()
    Spending(database).write(NotedAmount("alice", 1.0))
    trail = RotatingJsonl(state / "audit.jsonl", 10)
    for _ in range(3):
        trail.write({"act": "x"})
    trail.close()
    await FileVault(state / "mcp" / "credentials").save("key", "secret")
    await NeedsAuthMemory(Documents(database, "needs")).remember("key", "digest")
    first_answers.write(str(state / "cache" / "greeting.jsonl"), {"x": {"1": b"{}"}}, "1", {})
    found = [state.parent, state, *state.rglob("*")]
    assert {oct(mode(path)) for path in found if path.is_dir()} == {"0o700"}
    assert {str(path): oct(mode(path)) for path in found if path.is_file() and mode(path) != 0o600} == {}
    assert len([path for path in found if path.is_file()]) >= 7


def test_modes_do_not_depend_on_the_umask(tmp_path: Path, umask: int) -> None:
    directory = private_directory(tmp_path / "a" / "b")
    file = directory / "file"
    os.close(open_private(file, os.O_WRONLY | os.O_CREAT))
    assert (mode(directory.parent), mode(directory), mode(file)) == (0o700, 0o700, 0o600)


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (tmp_path / "file").symlink_to(target)
    with pytest.raises(OSError, match=r"symbolic link|Too many levels"):
        open_private(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    assert not target.exists()


def test_a_directory_that_was_there_before_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o755)
    private_directory(tmp_path / "shared" / "state")
    assert mode(tmp_path / "shared") == 0o755


# -- the greeting's cache -------------------------------------------------------------------------------------


@pytest.fixture
def cached(tmp_path: Path) -> Path:
    """A manifest in the cache, as the server leaves it."""
    file = tmp_path / "cache" / "greeting.jsonl"
    first_answers.write(str(file), {"initialize": {"1": b"{}"}}, "1", {})
    assert first_answers.read(str(file), only_ours=True) is not None
    return file


@pytest.mark.parametrize("lax", [0o620, 0o602, 0o666])
def test_cache_writable_by_others_is_ignored(cached: Path, lax: int) -> None:
    cached.chmod(lax)
    assert first_answers.read(str(cached), only_ours=True) is None


def test_link_or_pipe_in_the_cache_is_ignored(cached: Path) -> None:
    link, pipe = cached.with_name("link"), cached.with_name("pipe")
    link.symlink_to(cached)
    os.mkfifo(pipe)
    assert first_answers.read(str(link), only_ours=True) is None
    assert first_answers.read(str(pipe), only_ours=True) is None
    assert first_answers.read(str(cached.parent), only_ours=True) is None


def test_cache_owned_by_another_user_is_ignored(cached: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(cached, 65534, 65534)
    assert first_answers.read(str(cached), only_ours=True) is None


def test_the_cache_is_looked_at_in_this_way(cached: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The way that a start takes: settings of its own, and a planted list of tools."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CLAUDE_CODE_MCP_TOOLSETS", "code")
    found, leave = first_answers.find(["serve"])
    assert found is None
    assert leave is not None
    Path(leave).parent.mkdir(exist_ok=True)
    Path(leave).write_bytes(cached.read_bytes())
    Path(leave).chmod(0o666)
    assert first_answers.find(["serve"]) == (None, leave)
    Path(leave).chmod(0o600)
    assert first_answers.find(["serve"])[0] is not None
    assert json.loads(Path(leave).read_text().splitlines()[0])["otherwise"] == "1"
