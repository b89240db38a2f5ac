"""Where a new session may work, as a person chooses it: listed by the server, within the directories of the policy."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import script, text

from .conftest import Console, running_console
from .console_client import Browser
from .test_conversation import ended, start


@pytest.fixture(scope="module")
def confined(tmp_path_factory: pytest.TempPathFactory, model: ScriptedModelThread) -> Iterator[Console]:
    """A server whose policy confines everybody to one directory."""
    root = tmp_path_factory.mktemp("confined")
    allowed = root / "allowed"
    for name in ("shop/src", "Blog", ".hidden", "\u202egnp.", "two\nlines", "shop/private/inside"):
        (allowed / name).mkdir(parents=True)
    (allowed / "file.txt").touch()
    (root / "secret" / "inside").mkdir(parents=True)
    (allowed / "out").symlink_to(root / "secret")
    (allowed / "again").symlink_to(allowed / "shop")
    (allowed / "broken").symlink_to(root / "nothing")
    if os.name == "posix":
        os.mkdir(os.fsencode(allowed) + b"/\xff-not-text")
    policy = root / "policy.toml"
    policy.write_text(
        f'[profiles.here]\nbase = "local"\nroots = ["{allowed}"]\ndeny = ["Read(/{allowed}/shop/private/**)"]\n'
    )
    with running_console(
        root, model.url, CLAUDE_CODE_MCP_POLICY=str(policy), CLAUDE_CODE_MCP_PROFILE="here"
    ) as running:
        yield running


@pytest.fixture
def eve(confined: Console) -> Browser:
    return confined.browser("alice")


def allowed_of(confined: Console) -> Path:
    return confined.sandbox.root / "allowed"


def test_it_begins_with_the_directories_of_the_policy(confined: Console, eve: Browser) -> None:
    assert eve.get("/api/directories").json == {"recent": [], "roots": [str(allowed_of(confined))]}


def test_subdirectories_are_listed_and_links_only_if_allowed(confined: Console, eve: Browser) -> None:
    allowed = allowed_of(confined)
    listed = eve.get(f"/api/directories?path={allowed}").json
    assert listed == {
        "path": str(allowed),
        "parent": None,
        "names": ["again", "Blog", "shop", "\u202egnp.", ".hidden"],
        "cut": False,
    }
    below = eve.get(f"/api/directories?path={allowed}/again").json
    assert (below["path"], below["parent"], below["names"]) == (str(allowed / "shop"), str(allowed), ["src"])
    assert eve.get(f"/api/directories?path={allowed}&text=LO").json["names"] == ["Blog"]


@pytest.mark.parametrize("path", ["{root}", "{root}/secret", "{allowed}/out", "{allowed}/../secret", "/", "~", "\\"])
def test_nothing_outside_is_listed(confined: Console, eve: Browser, path: str) -> None:
    named = path.format(root=confined.sandbox.root, allowed=allowed_of(confined))
    refused = eve.get(f"/api/directories?path={named}")
    assert (refused.status, "inside" in refused.body.decode()) in {(403, False), (400, False)}


def test_directories_that_may_not_be_read_are_not_listed(confined: Console, eve: Browser) -> None:
    allowed = allowed_of(confined)
    assert eve.get(f"/api/directories?path={allowed}/shop").json["names"] == ["src"]
    for path in ("shop/private", "shop/private/inside", "again/private", "shop/src/../private"):
        refused = eve.get(f"/api/directories?path={allowed}/{path}")
        assert (refused.status, refused.code) == (403, "PERMISSION_DENIED"), path


def test_unreadable_files_are_reported(confined: Console, eve: Browser) -> None:
    for name in ("nowhere", "file.txt", "x" * 300):
        refused = eve.get(f"/api/directories?path={allowed_of(confined)}/{name}")
        assert (refused.status, refused.code) == (400, "INVALID_ARGUMENT")
    assert eve.get(f"/api/directories?path={'x' * 5000}").code == "INVALID_ARGUMENT"
    assert eve.get("/api/directories?path=%00").code == "INVALID_ARGUMENT"


def test_only_those_who_are_signed_in_are_answered(confined: Console) -> None:
    assert Browser(confined.base).get("/api/directories").status == 401


def test_where_somebody_worked_last_comes_first_and_is_nobody_elses(
    console: Console, alice: Browser, bob: Browser
) -> None:
    before = bob.get("/api/directories").json["recent"]
    ended(alice, start(alice, console, script("Work here.", text("Done."))))
    assert alice.get("/api/directories").json["recent"][0] == os.path.realpath(console.project)
    assert bob.get("/api/directories").json["recent"] == before
