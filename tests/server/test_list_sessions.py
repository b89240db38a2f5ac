"""The sessions of the machine as callers find them, on every wire, and those of servers that are gone."""

import subprocess
from pathlib import Path

import pytest

from claude_code_mcp.core.claude.executable import find_executable
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, text
from tests.support.waiting import HANG_SECONDS

from .conftest import Connect, Wire, open_client
from .connection import Connection


@pytest.fixture(scope="module")
def foreign(place: Sandbox, server_environment: dict[str, str]) -> str:
    """The directory of a bare `claude -p` run that this server has nothing to do with."""
    directory = place.project / "foreign"
    directory.mkdir()
    subprocess.run(
        [find_executable(None, server_environment), "-p", script("a zebra crossed", "noted")],
        cwd=directory,
        env=server_environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=HANG_SECONDS,
    )
    return str(directory)


@pytest.mark.promise("list.foreign", "list.project", "send.earlier-server")
def test_sessions_of_bare_runs_are_listed_and_continued(client: Connection, foreign: str) -> None:
    (listed,) = client.sessions(projectDirectory=foreign)
    assert listed["projectDirectory"] == foreign
    assert "zebra" in listed["displayText"]
    assert listed["isActive"] is False
    assert "activeStatus" not in listed
    found = client.look(listed["sessionId"])
    assert found.status == "completed", "at rest, until it gets a message"
    assert found.data["turnCount"] >= 1, "its answers are counted, as its cost is"
    ended = client.send(listed["sessionId"], script("go", "and ${cwd}"), waitSeconds=40)
    assert ended.data["result"] == f"and {foreign}", "it goes on where it was"
    (listed,) = client.sessions(projectDirectory=foreign)
    assert (listed["isActive"], listed["activeStatus"]) == (True, "completed")


@pytest.mark.promise("list.newest-first", "list.text")
def test_sessions_are_listed_newest_first(client: Connection, warm: str) -> None:
    client.send(warm, script("go", "touched"), waitSeconds=40)
    other = client.create(script("look for the okapi", "found"), waitSeconds=40).session
    assert [session["sessionId"] for session in client.sessions(limit=2)] == [other, warm]
    client.send(warm, script("go", "touched"), waitSeconds=40)
    assert [session["sessionId"] for session in client.sessions(limit=1)] == [warm]
    assert other in [session["sessionId"] for session in client.sessions(text="OKAPI")]
    assert warm not in [session["sessionId"] for session in client.sessions(text="OKAPI")]
    assert client.sessions(text="no such animal anywhere") == []
    assert client.call("claude_list_sessions", text="no such animal anywhere").text == "No sessions."


@pytest.mark.promise("list.active")
def test_a_running_session_is_listed_with_its_status(client: Connection, place: Sandbox, tmp_path: Path) -> None:
    created = client.create(script("slow one", text("ok", until=str(tmp_path / "go"))))
    (listed,) = [session for session in client.sessions() if session["sessionId"] == created.session]
    assert (listed["isActive"], listed["activeStatus"]) in [(True, "running"), (False, "running")]
    assert listed["projectDirectory"] == str(place.project)
    assert listed["displayText"].startswith("slow one")
    (tmp_path / "go").touch()
    client.look(created.session, waitSeconds=40)
    (listed,) = [session for session in client.sessions() if session["sessionId"] == created.session]
    assert (listed["isActive"], listed["activeStatus"]) == (True, "completed")


@pytest.mark.promise("list.project")
def test_a_directory_without_sessions_has_an_empty_list(client: Connection, warm: str, place: Sandbox) -> None:
    assert client.sessions(projectDirectory=str(place.temporary)) == []
    assert client.sessions(projectDirectory=f"{place.project}/../nowhere") == []
    assert warm in [session["sessionId"] for session in client.sessions(projectDirectory=f"{place.project}/.")]


@pytest.mark.soak
@pytest.mark.promise("send.earlier-server")
def test_a_session_of_an_earlier_server_continues(
    connect: Connect, server_environment: dict[str, str], place: Sandbox
) -> None:
    wire = Wire("stdio", "legacy")
    with Connection(
        lambda ask: open_client(wire, None, server_environment, place.project, ask), can_be_asked=False
    ) as earlier:
        session = earlier.create(script("remember 42", "will do"), waitSeconds=40).session
    with connect() as later:
        ended = later.send(session, script("go", "42 it was"), waitSeconds=40)
        assert (ended.session, ended.data["result"]) == (session, "42 it was")
        assert ended.data["costUsd"] > 0
