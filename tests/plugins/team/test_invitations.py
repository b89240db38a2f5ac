"""`people` on a state of its own, without a server: what is printed, and what is refused."""

import contextlib
import json
import os
import sqlite3
import subprocess
from pathlib import Path

import pytest

from tests.conftest import RUN
from tests.support import warm_commands

pytestmark = pytest.mark.programs


@pytest.fixture
def people(tmp_path: Path) -> "People":
    return People(tmp_path)


class People:
    def __init__(self, root: Path) -> None:
        self._root = root
        self.state = root / "state"
        self._environment = {
            "HOME": str(root),
            "PATH": os.environ["PATH"],
            RUN: os.environ[RUN],
            "CLAUDE_CODE_MCP_STATE_DIR": str(root / "state"),
        }

    def __call__(self, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
        environment = {**self._environment, **more}
        return warm_commands.helper().run(["people", *arguments], environment, self._root)


AT = {"CLAUDE_CODE_MCP_WEB_URL": "https://claude.example.org/"}


def test_people_are_invited_listed_and_removed(people: People) -> None:
    invited = people("invite", "alice", "--group", "leads", "--group", "ops", "--hours", "5", **AT)
    assert invited.returncode == 0, invited.stderr
    assert "https://claude.example.org/invite#" in invited.stdout
    assert "for 5 hours" in invited.stdout
    assert "https://claude.example.org/mcp" in invited.stdout
    listed = people("list").stdout.splitlines()
    assert [line.split() for line in listed] == [
        ["NAME", "GROUPS", "PASSKEYS", "LAST", "SIGN-IN"],
        ["alice", "leads,", "ops", "0", "invited"],
    ]
    again = json.loads(people("link", "alice", "--json", **AT).stdout)
    assert again["url"] not in invited.stdout
    assert people("remove", "alice").returncode == 2, "nobody is there who could say yes"
    with contextlib.closing(sqlite3.connect(people.state / "state.sqlite3")) as db, db:
        db.execute("INSERT INTO shares VALUES ('a-session', 'alice', 'watch', 'bob', 0.0)")
    removed = people("remove", "alice", "--yes")
    assert removed.returncode == 0
    assert removed.stdout.strip() == "alice was removed. 1 share by or with them ended."
    (line,) = (people.state / "audit.jsonl").read_text().splitlines()
    unshared = {"act": "session_unshared", "session": "a-session", "with": "alice", "owner": "bob", "why": "removed"}
    assert unshared.items() <= json.loads(line).items()
    listed = json.loads(people("list", "--json").stdout)
    assert listed["people"] == []
    assert [(name["name"], name["issuer"]) for name in listed["names"]] == [("alice", "invited")]
    assert people("list").stdout.splitlines()[1].split()[::2] == ["alice", "invited"]
    forgotten = json.loads(people("forget", "alice", "--json").stdout)
    assert forgotten == {"name": "alice", "free": True, "sharesEnded": 0}
    assert json.loads(people("list", "--json").stdout) == {"people": [], "names": []}
    assert "No one is invited yet" in people("list").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("invite", "a name"), 2, "is not a valid name"),
        (("invite", "../evil"), 2, "is not a valid name"),
        (("invite", "default"), 2, "a caller with a token"),
        (("invite", "local"), 2, "a caller with a token"),
        (("invite", "operator"), 2, "a caller with a token"),
        (("invite", "bob", "--group", ""), 2, "A group name has"),
        (("link", "nobody"), 2, "There is no person named"),
        (("remove", "nobody", "--yes"), 3, "There is no person named"),
        (("forget", "nobody"), 3, "The name nobody is not in use"),
    ],
)
def test_inconsistent_options_are_refused(people: People, arguments: tuple[str, ...], code: int, reason: str) -> None:
    refused = people(*arguments, **AT)
    assert refused.returncode == code, refused.stderr
    assert reason in refused.stderr


def test_without_an_address_no_one_is_invited(people: People) -> None:
    refused = people("invite", "alice")
    assert refused.returncode == 2
    assert "CLAUDE_CODE_MCP_WEB_URL" in refused.stderr
    assert people("invite", "alice", **AT).returncode == 0, "nothing was changed by that"
    assert "is already invited" in people("invite", "alice", **AT).stderr
    assert "people remove alice" in people("forget", "alice").stderr
