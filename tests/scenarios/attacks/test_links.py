"""Links that a session has put into its own Claude Code directory, or into that of the user which it shares: nothing of
what they lead to is shown, listed, copied, changed or removed."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.errors import ClaudeCodeError
from claude_code_mcp.core.model.caller import Caller
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.policy.policy import Policy, Profile
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.stored.session_library import SessionLibrary
from claude_code_mcp.core.transcripts.transcript_export import Detail
from claude_code_mcp.core.transcripts.transcripts import ProjectFolders, SessionFiles, Transcripts
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import agent, script, tool
from tests.conftest import StartService, contents_below
from tests.core.sessions.support import end_of

OWN, THEIRS = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
SECRET = "the secret of another"
TABLE = json.loads((Path(__file__).parent / "links.json").read_text())


def line(text: str, session_id: str, **more: Any) -> str:
    message = {"role": "user", "content": text}
    said = {"type": "user", "uuid": f"u-{session_id}", "cwd": "/work", "sessionId": session_id, "isSidechain": False}
    return json.dumps({**said, "timestamp": "2026-01-01T00:00:00Z", "message": message, **more}) + "\n"


def directory(root: Path, session_id: str, text: str) -> Path:
    """A configuration directory with one session that has a subagent, and what the CLI keeps beside it."""
    folder = root / "projects" / "-work"
    agents = folder / session_id / "subagents"
    agents.mkdir(parents=True)
    (folder / f"{session_id}.jsonl").write_text(line(text, session_id).rstrip("\n"))
    (agents / "agent-a1.jsonl").write_text(line(text, session_id, isSidechain=True, agentId="a1"))
    (root / "todos").mkdir()
    for name in {OWN, THEIRS, session_id}:
        (root / "todos" / f"{name}-agent.json").write_text(text)
    history = {"display": text, "timestamp": 1_700_000_000_000, "project": "/work", "sessionId": session_id}
    (root / "history.jsonl").write_text(json.dumps(history) + "\n")
    return root


def put(link: Path, to: str) -> None:
    """A link in place of whatever is there."""
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(to)


class Disk:
    """Two directories, of which one has a link into the other."""

    def __init__(self, root: Path, row: dict[str, Any], *, own: bool) -> None:
        self.theirs = directory(root / "theirs", THEIRS, SECRET)
        self.own = directory(root / "own", OWN, "mine")
        if row.get("same"):
            shutil.copytree(self.theirs / "projects" / "-work", self.own / "projects" / "-work", dirs_exist_ok=True)
        for name, to in row.get("also", {}).items():
            put(self.own / name, to.format(own=self.own, theirs=self.theirs))
        put(self.own / row["link"], row["to"].format(own=self.own, theirs=self.theirs))
        self.before = contents_below(self.theirs)
        self.projects = ProjectFolders.below(str(self.own), own=own)
        self.session = row.get("session", OWN)
        self.library = SessionLibrary(str(self.own), root / "state", lambda data: data, projects=self.projects)

    def change(self, kind: str) -> None:
        files, transcripts = SessionFiles(str(self.own), self.projects), Transcripts(self.projects)
        acts: dict[str, Callable[[], object]] = {
            "title": lambda: files.set_title(self.session, "taken"),
            "remove": lambda: files.remove(self.session),
            "copy": lambda: files.copy(self.session, "33333333-3333-4333-8333-333333333333", "copy"),
            "tag": lambda: files.set_tag(self.session, "taken"),
            "end line": lambda: transcripts.end_last_line(self.session),
            "trial": lambda: transcripts.flaw("/work"),
        }
        try:
            acts[kind]()
        except (OSError, ClaudeCodeError):
            return


@pytest.mark.parametrize("own", [True, False], ids=["of a principal", "of the user, shared"])
@pytest.mark.parametrize("row", TABLE, ids=[row["attack"] for row in TABLE])
async def test_the_table_of_links(tmp_path: Path, row: dict[str, Any], own: bool) -> None:
    if not own and row["link"] in ("projects", "todos"):
        pytest.skip("these names are the user's own there")
    disk = Disk(tmp_path, row, own=own)
    if "change" in row:
        disk.change(row["change"])
        assert contents_below(disk.theirs) == disk.before
        return
    seen = [repr(entry) for entry in disk.library.catalog.list(whole=True, text=None)]
    seen += [*disk.library.catalog.transcript_lines(disk.session)]
    try:
        page = await disk.library.read(disk.session, cursor="1", size=10_000, detail=Detail(full=True))
        seen += [page.text, page.title, *page.agents]
        for agent in page.agents:
            seen.append(
                (await disk.library.read(disk.session, cursor="1", size=9000, detail=Detail(), agent=agent)).text
            )
    except ClaudeCodeError:
        pass
    assert SECRET not in "\n".join(seen)
    assert contents_below(disk.theirs) == disk.before


def test_what_the_operator_has_linked_is_followed(tmp_path: Path) -> None:
    """The directory itself, or all of its projects, wherever they are kept."""
    real = directory(tmp_path / "elsewhere", OWN, "mine")
    (tmp_path / "whole").symlink_to(real)
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "projects").symlink_to(real / "projects")
    for config in ("whole", "part"):
        assert ProjectFolders.below(str(tmp_path / config)).locate(OWN) is not None
    assert ProjectFolders.below(str(tmp_path / "whole"), own=True).locate(OWN) is not None
    assert ProjectFolders.below(str(tmp_path / "part"), own=True).locate(OWN) is None


def test_a_user_alone_may_link_the_folder_of_a_project_that_has_moved(tmp_path: Path) -> None:
    config = directory(tmp_path / "config", OWN, "mine")
    os.rename(config / "projects" / "-work", tmp_path / "kept")
    (config / "projects" / "-work").symlink_to(tmp_path / "kept")
    assert ProjectFolders.below(str(config)).locate(OWN) is None
    linked = ProjectFolders.below(str(config), linked=True)
    assert linked.locate(OWN) == str(tmp_path / "kept" / f"{OWN}.jsonl")
    assert Transcripts(linked).resumable(OWN, "/work")
    (tmp_path / "kept" / f"{OWN}.jsonl").write_text(line("mine", OWN))
    library = SessionLibrary(str(config), tmp_path / "state", lambda data: data, projects=linked)
    assert [entry.session_id for entry in library.catalog.list()] == [OWN]


FIND = "dirname $(find {place} -name {session}.jsonl)"


@pytest.mark.soak  # in the table above, without a session
async def test_a_command_that_links_the_subagents_of_another_shows_none_of_them(
    start_service: StartService, sandbox: Sandbox
) -> None:
    """Between two principals of one service, with the real CLI; without a sandbox, which hides the other directory."""
    service: Service = await start_service(
        policy=Policy(Profile(isolation="none")), principals=("alice", "mallory"), default_cwd=str(sandbox.project)
    )
    options = SessionOptions(cwd=str(sandbox.project), allowed_tools=("Bash", "Agent"))
    work = script("delegate", agent("look", script("sub", SECRET)), "done")
    theirs = await service.create(work, options, caller=Caller("alice"))
    assert (await end_of(theirs)).ok
    [name] = (await service.stored.read(theirs.session.id, caller=Caller("alice"))).agents
    place = str(sandbox.root / "state" / "principals")
    first = await service.create(script("go", "hello"), options, caller=Caller("mallory"))
    assert (await end_of(first)).ok
    found = [FIND.format(place=place, session=turn.session.id) for turn in (theirs, first)]
    command = (
        f"T=$({found[0]})/{theirs.session.id}; O=$({found[1]})/{first.session.id}; "
        "mkdir -p $O; ln -s $T/subagents $O/subagents; ls $O/subagents/ > seen"
    )
    again = await service.send(
        first.session.id, script("link", tool("Bash", command=command), "done"), caller=Caller("mallory")
    )
    assert (await end_of(again)).ok
    assert name in (sandbox.project / "seen").read_text(), "the link is there, and leads there"
    shown = await service.stored.read(first.session.id, caller=Caller("mallory"))
    assert shown.agents == ()
    with pytest.raises(ClaudeCodeError, match="no subagent"):
        await service.stored.read(first.session.id, caller=Caller("mallory"), agent=name)
