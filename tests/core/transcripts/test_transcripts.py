"""What can be told from a transcript, whatever state it is in."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.model.session_id import is_session_id
from claude_code_mcp.core.model.usage import ModelUsage, Usage
from claude_code_mcp.core.transcripts.transcript_lines import lines_from, parse
from claude_code_mcp.core.transcripts.transcripts import ProjectFolders, Transcripts

SESSION = "11111111-1111-4111-8111-111111111111"
USER = {"type": "user", "cwd": "/srv/app", "message": {"role": "user", "content": "hi"}}
ASSISTANT = {"type": "assistant", "cwd": "/srv/app", "message": {"role": "assistant", "content": []}}
QUEUED = {"type": "queue-operation", "operation": "enqueue", "cwd": "/srv/app"}


def cost(dollars: float) -> dict[str, Any]:
    return {"type": "cost-state", "modelUsage": {"opus": {"inputTokens": 3, "costUSD": dollars}}}


def spent(dollars: float) -> Usage:
    return Usage({"opus": ModelUsage(input_tokens=3, cost_usd=dollars)})


@pytest.fixture
def transcripts(tmp_path: Path) -> Transcripts:
    return Transcripts(ProjectFolders.below(str(tmp_path)))


def write(root: Path, *lines: dict[str, Any] | str, folder: str = "-srv-app", session_id: str = SESSION) -> Path:
    path = root / "projects" / folder / f"{session_id}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_a_transcript_reports_directory_and_consumption(transcripts: Transcripts, tmp_path: Path) -> None:
    path = write(tmp_path, QUEUED, USER, ASSISTANT, cost(0.5))
    found = transcripts.read(SESSION)
    assert found is not None
    assert (found.session_id, found.path, found.cwd, found.usage) == (SESSION, path, "/srv/app", spent(0.5))
    assert transcripts.resumable(SESSION)


def test_the_last_costs_count_however_far_back_they_are(transcripts: Transcripts, tmp_path: Path) -> None:
    long = {**USER, "message": {"role": "user", "content": "x" * 3_000_000}}
    write(tmp_path, USER, cost(0.25), USER, cost(0.5), long)
    found = transcripts.read(SESSION)
    assert found is not None
    assert found.usage == spent(0.5)


@pytest.mark.parametrize(
    "mention", [{**USER, "x": "cost-state"}, {**USER, "message": {"content": '{"type":"cost-state"}'}}]
)
def test_message_text_about_costs_is_not_parsed_as_costs(
    mention: dict[str, Any], transcripts: Transcripts, tmp_path: Path
) -> None:
    write(tmp_path, cost(0.5), mention)
    found = transcripts.read(SESSION)
    assert found is not None
    assert found.usage == spent(0.5)


def test_a_transcript_without_costs_has_cost_nothing(transcripts: Transcripts, tmp_path: Path) -> None:
    write(tmp_path, USER, {"type": "cost-state", "modelUsage": "damaged"})
    found = transcripts.read(SESSION)
    assert found is not None
    assert found.usage == Usage()


def test_damaged_lines_are_skipped(transcripts: Transcripts, tmp_path: Path) -> None:
    write(tmp_path, "{", "null", "[1]", "\udcff".encode("utf-8", "replace").decode(), "", USER, '{"type": "assist')
    assert transcripts.resumable(SESSION)
    found = transcripts.read(SESSION)
    assert found is not None
    assert found.cwd == "/srv/app"


@pytest.mark.parametrize("lines", [[], [QUEUED], ["{"], [{"type": "summary", "summary": "…"}, cost(1)]])
def test_without_a_message_there_is_nothing_to_resume(
    lines: list[Any], transcripts: Transcripts, tmp_path: Path
) -> None:
    write(tmp_path, *lines)
    assert not transcripts.resumable(SESSION)
    assert transcripts.read(SESSION) is None
    assert transcripts.path_of(SESSION) is not None


def test_a_session_without_a_directory_can_still_be_resumed(transcripts: Transcripts, tmp_path: Path) -> None:
    write(tmp_path, {"type": "user"}, {"type": "assistant", "cwd": 5})
    found = transcripts.read(SESSION)
    assert found is not None
    assert found.cwd is None


def test_a_fork_belongs_to_its_own_directory_and_not_to_the_one_it_comes_from(
    transcripts: Transcripts, tmp_path: Path
) -> None:
    write(tmp_path, USER, {**USER, "cwd": "/srv/other"}, folder="-srv-other")
    found = transcripts.read(SESSION)
    assert found is not None
    assert found.cwd == "/srv/other"


def test_newest_of_several_transcripts_counts(transcripts: Transcripts, tmp_path: Path) -> None:
    old, new = (write(tmp_path, USER, folder=folder) for folder in ("-old", "-new"))
    for path, when in ((old, 1000), (new, 2000)):
        os.utime(path, (when, when))
    assert transcripts.path_of(SESSION) == new
    os.utime(old, (3000, 3000))
    assert transcripts.path_of(SESSION) == old


def test_a_known_directory_leads_straight_to_the_transcript(transcripts: Transcripts, tmp_path: Path) -> None:
    own = write(tmp_path, USER)
    foreign = write(tmp_path, USER, folder="-elsewhere")
    os.utime(own, (1000, 1000))
    assert transcripts.path_of(SESSION) == foreign
    assert transcripts.path_of(SESSION, "/srv/app") == own
    assert transcripts.resumable(SESSION, "/srv/app")
    assert transcripts.path_of(SESSION, "/srv/unknown") == foreign


@pytest.mark.parametrize(
    "text",
    ["", "x", "../../etc/passwd", "*", f"{SESSION}/..", f"{SESSION}\n", f"../{SESSION}", SESSION[:-1], "1" * 36],
)
def test_invalid_session_id_never_becomes_a_path(text: str, transcripts: Transcripts, tmp_path: Path) -> None:
    write(tmp_path, USER)
    assert not is_session_id(text)
    assert transcripts.path_of(text) is None
    assert transcripts.read(text) is None
    assert not transcripts.resumable(text)


def test_unknown_session_is_not_found_with_and_without_projects(transcripts: Transcripts, tmp_path: Path) -> None:
    assert transcripts.read(SESSION) is None
    write(tmp_path, USER, session_id="22222222-2222-4222-8222-222222222222")
    assert transcripts.read(SESSION) is None
    assert not transcripts.resumable(SESSION)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_non_regular_file_is_not_a_transcript(
    make: Callable[[Path], None], transcripts: Transcripts, tmp_path: Path
) -> None:
    path = write(tmp_path, USER)
    path.unlink()
    make(path)
    assert transcripts.read(SESSION) is None
    assert transcripts.read(SESSION) is None
    assert not transcripts.resumable(SESSION)


def test_reading_changes_nothing(transcripts: Transcripts, tmp_path: Path) -> None:
    path = write(tmp_path, USER, cost(1))
    before = path.read_bytes()
    path.chmod(stat.S_IRUSR)
    transcripts.read(SESSION)
    assert path.read_bytes() == before


ID = "11111111-2222-4333-8444-555555555555"
LINE = b'{"type":"assistant","uuid":"a1","message":{}}\n'


def written(tmp_path: Path, content: bytes) -> Transcripts:
    folder = tmp_path / "projects" / "-code"
    folder.mkdir(parents=True)
    (folder / f"{ID}.jsonl").write_bytes(content)
    return Transcripts(ProjectFolders.below(str(tmp_path)))


@pytest.mark.parametrize(
    ("content", "flaw"),
    [
        (LINE, None),
        (LINE + b'{"type":"attachment","uuid":"b2","parentUuid":"a1"}\n', None),
        (b'{"type":"user","cut' + LINE, "line"),
        (LINE.rstrip(b"\n"), None),
        (b'{"type":"attachment","uuid":"b2","parentUuid":"a1"}\n', None),
        (LINE + b"x" * (1 << 20) + b"\n", None),
    ],
    ids=["written", "more behind it", "glued to another", "being written", "not yet", "far back"],
)
def test_a_message_counts_as_lost_only_if_that_is_certain(tmp_path: Path, content: bytes, flaw: str | None) -> None:
    found = written(tmp_path, content).flaw_after(ID, "/code", "a1", 10)
    assert (found is None) if flaw is None else flaw in str(found)
    assert [path.name for path in (tmp_path / "projects" / "-code").iterdir()] == [f"{ID}.jsonl"]


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        (LINE, True),
        (LINE + b'{"type":"attachment","uuid":"b2","parentUuid":"a1"}\n', True),
        (b'{"type":"user","cut' + LINE, False),
        (LINE.rstrip(b"\n"), False),
        (LINE + b"x" * (1 << 20) + b"\n", False),
    ],
    ids=["written", "more behind it", "glued to another", "being written", "far back"],
)
def test_a_first_look_finds_only_what_is_whole_and_near_the_end(tmp_path: Path, content: bytes, seen: bool) -> None:
    transcripts = written(tmp_path, content)
    assert transcripts.is_written(ID, "/code", "a1", 10) is seen
    assert not transcripts.is_written(ID, "/elsewhere", "a1", 10)
    (tmp_path / "link").symlink_to("/code")
    assert transcripts.is_written(ID, str(tmp_path / "link"), "a1", 10) is seen


@pytest.mark.parametrize(("before", "after"), [(LINE, LINE), (b'{"cut', b'{"cut\n'), (b"", b"")])
def test_a_line_that_was_cut_off_is_ended(tmp_path: Path, before: bytes, after: bytes) -> None:
    written(tmp_path, before).end_last_line(ID)
    assert (tmp_path / "projects" / "-code" / f"{ID}.jsonl").read_bytes() == after


def test_a_link_in_the_place_of_a_transcript_changes_nothing_elsewhere(
    transcripts: Transcripts, tmp_path: Path
) -> None:
    """A session may put it there; what it leads to is not the session's."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("no line break")
    path = write(tmp_path, USER)
    path.unlink()
    path.symlink_to(elsewhere)
    transcripts.end_last_line(SESSION)
    assert transcripts.path_of(SESSION) is None
    assert elsewhere.read_text() == "no line break"


def test_a_transcript_that_is_longer_than_the_disk_is_abandoned(transcripts: Transcripts, tmp_path: Path) -> None:
    path = write(tmp_path, cost(0.5))
    os.truncate(path, 1 << 40)
    assert not transcripts.resumable(SESSION)
    assert transcripts.usage_of(SESSION) == spent(0.5)
    assert transcripts.flaw_after(SESSION, "/srv/app", "no message", 10) is None
    assert [parse(line) for line, _ in lines_from(str(path))] == [cost(0.5)]
