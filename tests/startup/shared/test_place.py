"""Where the shared server may be: in a directory of the user's alone, one place per set of settings."""

import errno
import fcntl
import os
import socket
from pathlib import Path

import pytest

from claude_code_mcp.cli import doctor
from claude_code_mcp.client.connections import NotRunning, join
from claude_code_mcp.core.config import Settings
from claude_code_mcp.core.settings_section import variable_of
from claude_code_mcp.startup.shared import handshake as hello
from claude_code_mcp.startup.shared import place
from tests.support.every_setting import every_variable

BASE = {"HOME": "/home/me"}


def name(environment: dict[str, str], tmp_path: Path, *arguments: str) -> str:
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700, exist_ok=True)
    return place.find_place(arguments, {**environment, place.RUNTIME_DIR: str(directory)})[0].name


def test_every_setting_is_the_servers_or_known_to_be_the_clients() -> None:
    own = {
        variable_of("claude_path", Settings),
        variable_of("default_cwd", Settings),
        variable_of("log_level", Settings),
    }
    known = own | place.OF_THE_CLIENT | place.OF_HTTP
    for variable in every_variable():
        changed = place.fingerprint((), {**BASE, variable: "/x"}) != place.fingerprint((), BASE)
        assert changed is (variable not in known), variable


def test_clients_with_equal_settings_share_a_server(tmp_path: Path) -> None:
    usual = name(BASE, tmp_path)
    same = {"ANTHROPIC_API_KEY": "k", "PATH": "/bin", "CLAUDE_CODE_DEFAULT_CWD": "/src", "LOG_LEVEL": "debug"}
    assert name({**BASE, **same}, tmp_path, "--shared") == usual
    assert name({**BASE, "CLAUDE_CODE_MCP_MARK": "m", "CLAUDE_CODE_MCP_TOKEN": "t"}, tmp_path, "--sh") == usual
    for other in ({"HOME": "/home/you"}, {"CLAUDE_CODE_MCP_POLICY": "/p.toml"}, {"MAX_SESSIONS": "3"}):
        assert name({**BASE, **other}, tmp_path) != usual
    assert name(BASE, tmp_path, "--toolsets", "code") != usual


def test_a_file_of_settings_counts_by_its_content(tmp_path: Path) -> None:
    one, other, third = (tmp_path / file for file in ("one.toml", "other.toml", "third.toml"))
    one.write_text("max_sessions = 3")
    other.write_text("max_sessions = 3")
    third.write_text("max_sessions = 4")
    by_flag = name(BASE, tmp_path, "--config", str(one))
    assert name(BASE, tmp_path, f"--conf={other}") == by_flag
    assert name({**BASE, "CLAUDE_CODE_MCP_CONFIG": str(other)}, tmp_path) == by_flag
    assert name(BASE, tmp_path, "--config", str(third)) != by_flag


def test_a_relative_path_counts_with_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    relative = {**BASE, "CLAUDE_CODE_MCP_POLICY": "policy.toml"}
    here = name(relative, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert name(relative, tmp_path) != here


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o750, 0o701, 0o1777])
def test_a_directory_that_others_can_enter_is_refused(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(place.SharedServerUnavailable, match="not a private directory"):
        place.runtime_directory({place.RUNTIME_DIR: str(directory)})


def test_a_link_and_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch(mode=0o700)
    for wrong in ("link", "file"):
        with pytest.raises(place.SharedServerUnavailable):
            place.runtime_directory({place.RUNTIME_DIR: str(tmp_path / wrong)})


def test_a_runtime_directory_that_others_can_write_to_is_passed_over(tmp_path: Path) -> None:
    public, state = tmp_path / "public", tmp_path / "state"
    public.mkdir()
    public.chmod(0o1777)
    environment = {"XDG_RUNTIME_DIR": str(public), "XDG_STATE_HOME": str(state)}
    assert place.runtime_directory(environment) == str(state / "claude-code-mcp" / "run")
    (state / "claude-code-mcp" / "run").chmod(0o755)
    with pytest.raises(place.SharedServerUnavailable, match="run"):
        place.runtime_directory(environment)
    public.chmod(0o700)
    assert place.runtime_directory(environment) == str(public / "claude-code-mcp")
    assert (public / "claude-code-mcp").stat().st_mode & 0o777 == 0o700


def test_clients_that_hand_on_few_variables_find_the_same_server(tmp_path: Path) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    few = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    many = {**few, "XDG_RUNTIME_DIR": str(runtime), "TERM": "xterm"}
    assert place.find_place([], few)[0].socket == place.find_place([], many)[0].socket


@pytest.mark.parametrize("at", ["open", "flock"])
def test_an_unreadable_lock_is_reported_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    runtime = tmp_path / "runtime"
    found = place.Place(place.runtime_directory({place.RUNTIME_DIR: str(runtime)}), "name")
    assert not place.is_held(found)
    lock = place.take_lock(found)
    assert lock is not None
    doing = {"open": os.open, "flock": fcntl.flock}[at]

    def failing(what: object, *rest: int) -> object:
        if what == found.lock or at == "flock":
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        return doing(what, *rest)  # type: ignore[operator]

    with monkeypatch.context() as patch:
        patch.setattr(os if at == "open" else fcntl, at, failing)
        with pytest.raises(place.SharedServerUnavailable, match=os.strerror(errno.ENOLCK)):
            place.is_held(found)
        monkeypatch.setenv(place.RUNTIME_DIR, found.directory)
        (finding,) = doctor._check_shared_servers()
        assert not finding.ok
        assert os.strerror(errno.ENOLCK) in finding.detail
    assert place.is_held(found)
    os.close(lock)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    os.chown(directory, 12345, 12345)
    with pytest.raises(place.SharedServerUnavailable, match="not a private directory"):
        place.runtime_directory({place.RUNTIME_DIR: str(directory)})


def test_a_path_that_is_too_long_for_a_socket_works(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 150)
    directory.mkdir(mode=0o700)
    path = str(directory / "x.sock")
    listener = place.bind(path)
    try:
        connection = place.connect(path)
        assert place.peer_is_ours(connection)
        connection.close()
        assert os.stat(path).st_mode & 0o777 == 0o600
    finally:
        listener.close()


def test_the_lock_is_held_by_one(tmp_path: Path) -> None:
    where = place.Place(str(tmp_path), "x")
    held = place.take_lock(where)
    assert held is not None
    assert place.take_lock(where) is None
    assert place.start(where) is None
    os.close(held)
    again = place.take_lock(where)
    assert again is not None
    os.close(again)


def test_leftovers_of_a_killed_server_are_replaced(tmp_path: Path) -> None:
    where = place.Place(str(tmp_path), "x")
    for left in (where.socket, f"{where.socket}.new"):
        stale = socket.socket(socket.AF_UNIX)
        stale.bind(left)
        stale.close()
    with pytest.raises(ConnectionRefusedError):
        place.connect(where.socket)
    listener = place.listen(where)
    place.connect(where.socket).close()
    listener.close()


def test_hello_round_trip(tmp_path: Path) -> None:
    strange = {"NAME": 'a "b" \\ \n \u2028 ü', "BYTES": os.fsdecode(b"\xff\xfe")}
    greeting = hello.Hello(directory=str(tmp_path), environment=strange, fingerprint="f\n", arguments=["--x"], pid=3)
    line = greeting.line()
    assert line.count(b"\n") == 1
    assert vars(hello.read_hello(line)) == vars(greeting)
    for garbage in (b"", b"{}", b'{"hello": 3}', b'{"hello": {}}', b"[]", b"\xff"):
        with pytest.raises(ValueError, match=r".*"):
            hello.read_hello(garbage)
        with pytest.raises(ValueError, match=r".*"):
            hello.read_welcome(garbage)


def test_versions_are_compared_by_number() -> None:
    assert hello.is_newer("0.10.0", "0.9.1")
    assert not hello.is_newer("0.9.1", "0.10.0")
    assert not hello.is_newer("1.0", "1.0")
    assert hello.is_newer("1.0.1", "1.0")


def test_the_environment_of_the_server_is_what_the_interpreter_needs() -> None:
    given = {"PATH": "/bin", "PYTHONPATH": "/x", "LC_ALL": "C", "ANTHROPIC_API_KEY": "k", "CLAUDE_CODE_MCP_TOKEN": "t"}
    assert place.clean_environment(given) == {"PATH": "/bin", "PYTHONPATH": "/x", "LC_ALL": "C"}


def test_a_command_that_finds_no_server_says_so(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    with pytest.raises(NotRunning, match="shared server"):
        join({place.RUNTIME_DIR: str(directory)})


def test_two_builds_of_one_version_are_distinguished() -> None:
    assert hello.is_newer("1.0.0+1790000001", "1.0.0+1790000000")
    assert not hello.is_newer("1.0.0+1790000001", "1.0.1+1790000000")
    assert hello.is_newer(hello.BUILD, "0.0.1+9999999999")
    assert hello.BUILD.partition("+")[2].isdigit()


def test_a_place_says_whether_the_gateway_of_a_fleet_has_it(tmp_path: Path) -> None:
    where = place.Place(str(tmp_path), "x")
    assert not place.is_gateway(where), "nobody has been there"
    lock = place.take_lock(where)
    assert lock is not None
    try:
        seen = []
        for gateway in (False, True, False):  # also after one that was killed
            place.write_holder(lock, gateway=gateway)
            seen.append((place.is_gateway(where), Path(where.lock).read_bytes().split()[0]))
        assert seen == [(wanted, b"%d" % os.getpid()) for wanted in (False, True, False)]
    finally:
        os.close(lock)
    os.unlink(where.lock)
    os.mkfifo(where.lock)
    assert not place.is_gateway(where), "it is not waited for"
