"""Transcripts that a session's own commands have written: whatever is in them, they are read, and they harm no other.

Every field that is read anywhere gets values of any type, from a seeded generator, thousands of lines in all.
"""

import copy
import json
import os
import random
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.cli.sessions import _row
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.sessions.stored.session_library import ExportFormat, SessionLibrary
from claude_code_mcp.core.state.session_records import Summary
from claude_code_mcp.core.transcripts.checkpoints import read_checkpoints
from claude_code_mcp.core.transcripts.conversation_pages import Extent
from claude_code_mcp.core.transcripts.cost_table import CostLedger, CostQuery, Costs
from claude_code_mcp.core.transcripts.recent_messages import read_recent
from claude_code_mcp.core.transcripts.session_catalog import Entry
from claude_code_mcp.core.transcripts.transcript_export import Detail
from claude_code_mcp.core.transcripts.transcript_lines import lines_from, parse
from claude_code_mcp.core.transcripts.transcripts import ProjectFolders, Transcripts, read_lines

from .catalog_disk import Disk, ids, lines, user

GOOD = str(uuid.uuid4())
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
WHOLE = Detail(full=True, thinking=True)


class Raw(str):
    """JSON as it is written, such as what Python would not nest so deeply."""

    __slots__ = ()


VALUES: list[Any] = [
    [], {}, None, True, False, 0, -1, 5, 2.5, 2**63, 10**4000, 1e300, float("nan"), float("inf"), "", "x", "\ud800x",
    "a\x1b[31mb\x9b2J\x07", "\u202eabc\u2028\n", "<img src=x onerror=alert(1)>", "```\n# x\n<b>", "a\0b", "x" * 5000,
    "2026-11-10T10:00:00.000Z", "2026-11-10\x1b[31m", "9999-99-99", "/etc/../etc/passwd", "[Request interrupted",
    "<command-name>/x</command-name>", ["x", {"y": []}], [[]], [None], [{"type": "text", "text": []}],
    {"\ud800": {"inputTokens": 1, "costUSD": 1}}, {"m\x1b[31m": {"costUSD": 2}}, {"a": {"costUSD": "1"}},
    [{"type": "tool_use", "id": [], "name": {}, "input": "\x1b"}], [{"lines": [1, {}, "\x1b"]}],
    Raw('{"a":' * 150 + "1" + "}" * 150), Raw("[" * 900 + "]" * 900), Raw("[" * 5000), Raw('"\\ud800"'),
]  # fmt: skip


def plain_lines() -> list[dict[str, Any]]:
    """A transcript with every kind of line that is read."""
    first, answer, result, more, compacted = (str(uuid.uuid4()) for _ in range(5))
    at = "2026-11-10T10:00:00.000Z"
    common = {"isSidechain": False, "cwd": "/proj", "gitBranch": "main", "sessionId": "s", "timestamp": at}
    usage = {"input_tokens": 5, "output_tokens": 7, "cache_read_input_tokens": 1, "cache_creation_input_tokens": 1}
    blocks = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "hello"},
        {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}},
    ]
    message = {"id": "m1", "model": "claude-x", "usage": usage, "content": blocks}
    returned = [
        {"type": "tool_result", "tool_use_id": "t1", "is_error": False, "content": [{"type": "text", "text": "o"}]}
    ]
    patch = [{"oldStart": 1, "oldLines": 1, "newStart": 1, "newLines": 1, "lines": ["-a", "+b"]}]
    queued = {"type": "queued_command", "prompt": "more", "source_uuid": "su"}
    spent = {
        "inputTokens": 5,
        "outputTokens": 7,
        "cacheReadInputTokens": 0,
        "cacheCreationInputTokens": 0,
        "costUSD": 0.5,
    }
    return [
        {"type": "queue-operation", "timestamp": at},
        {"type": "file-history-snapshot", "messageId": first},
        {"type": "summary", "summary": "Sum", "leafUuid": first},
        {"type": "user", "uuid": first, "parentUuid": None, "message": {"content": "first prompt"}, **common},
        {"type": "assistant", "uuid": answer, "parentUuid": first, "message": message, **common},
        {"type": "user", "uuid": result, "parentUuid": answer, "message": {"content": returned}, **common}
        | {"toolUseResult": {"structuredPatch": patch, "agentId": "abc"}},
        {"type": "attachment", "uuid": more, "parentUuid": result, "attachment": queued, **common},
        {"type": "user", "uuid": compacted, "parentUuid": more, "message": {"content": "sum"}, **common}
        | {"isCompactSummary": True},
        {"type": "system", "uuid": str(uuid.uuid4()), "parentUuid": compacted, "subtype": "compact_boundary", **common},
        {"type": "custom-title", "customTitle": "T"},
        {"type": "ai-title", "aiTitle": "A"},
        {"type": "tag", "tag": "t"},
        {"type": "relocated", "relocatedCwd": "/proj"},
        {
            "type": "cost-state",
            "startTime": 1_762_700_000_000,
            "totalAPIDuration": 12,
            "modelUsage": {"claude-x": spent},
        },
    ]


def places_in(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*place, key)
        yield from places_in(inner, (*place, key))


def with_value(line: dict[str, Any], place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed = inner = copy.deepcopy(line)
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return changed


def written(lines: list[dict[str, Any]]) -> bytes:
    raw: list[Raw] = []

    def marked(value: Any) -> Any:
        if isinstance(value, Raw):
            raw.append(value)
            return f"@@{len(raw) - 1}@@"
        if isinstance(value, dict):
            return {key: marked(inner) for key, inner in value.items()}
        return [marked(inner) for inner in value] if isinstance(value, list) else value

    text = "".join(f"{json.dumps(marked(line))}\n" for line in lines)
    return re.sub(r'"@@(\d+)@@"', lambda found: raw[int(found[1])], text).encode()


def hostile_transcripts(count: int, seed: int) -> Iterator[bytes]:
    """Each has the lines of a plain one, each line with one field of another value."""
    choose = random.Random(seed)
    for _ in range(count):
        lines = plain_lines()
        yield written([with_value(line, choose.choice([*places_in(line)]), choose.choice(VALUES)) for line in lines])


class Hostile:
    """A library with one good session, and others beside it."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "config" / "projects" / "-proj"
        self.folder.mkdir(parents=True)
        self.library = SessionLibrary(str(root / "config"), root / "state", lambda value: value)
        self.write(written(plain_lines()), GOOD)

    def write(self, content: bytes, session_id: str | None = None) -> str:
        session_id = session_id or str(uuid.uuid4())
        (self.folder / f"{session_id}.jsonl").write_bytes(content)
        return session_id

    async def cost(self, by: Any) -> Costs:
        return await self.library.costs(by, principal="local")

    async def read_all(self, session_id: str) -> list[str]:
        """Every text that comes of one session, for people and for clients."""
        library, path = self.library, self.folder / f"{session_id}.jsonl"
        transcripts = Transcripts(ProjectFolders.below(str(self.folder.parents[1])))
        transcripts.read(session_id)
        transcripts.answers(session_id)
        transcripts.api_ms(session_id)
        transcripts.began_before(session_id, 0)
        _ = read_recent(path).answer
        texts = [f"{each.prompt} {each.at}" for each in read_checkpoints(path, 50)]
        entry = library.catalog.find(session_id)
        if entry is None:
            return texts
        texts += [shown(entry), *library.catalog.transcript_lines(session_id)]
        texts.append((await library.read(session_id, cursor="1", size=24_000, detail=WHOLE)).text)
        texts.append((await library.read(session_id, cursor="-1", size=24_000, detail=Detail())).text)
        for extent in (Extent(400_000, most_turns=10), Extent(10)):
            page = (await library.page_before(session_id, None, extent)).page
            for part in page.parts:
                json.dumps([str(part.turn.message_id), str(part.turn.model)]).encode()
                for item in part.turn.items:
                    texts += [item.id, item.name, json.dumps(item.input, ensure_ascii=False), item.text, item.result]
        for form in ("html", "markdown"):
            texts.append((await library.export(session_id, form, WHOLE)).read_text("utf-8"))
        return texts


def shown(entry: Entry) -> str:
    parts = (entry.project, entry.title, entry.first_prompt, entry.branch, entry.model, entry.tag)
    return " ".join(part for part in parts if part)


@pytest.fixture
def hostile(tmp_path: Path) -> Hostile:
    return Hostile(tmp_path)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 4))])
async def test_any_value_in_any_field_is_read_and_harms_no_other_session(hostile: Hostile, seed: int) -> None:
    ids = [hostile.write(content) for content in hostile_transcripts(75, seed)]
    good = hostile.library.catalog.find(GOOD)
    assert good is not None
    listed = hostile.library.catalog.list(limit=1000)
    assert good in listed
    assert good in hostile.library.catalog.list(limit=1000, text="first prompt")
    assert GOOD in {entry.session_id for entry in hostile.library.catalog.list(limit=1000, text="hello", whole=True)}
    for by in ("day", "project", "model", "session"):
        costs = await hostile.cost(by)
        json.dumps([[line.name, line.usd, line.input_tokens] for line in costs.lines], allow_nan=False).encode()
    assert {line.name: line.usd for line in (await hostile.cost("session")).lines}[GOOD] == 0.5
    for session_id in ids:
        for text in await hostile.read_all(session_id):
            text.encode()
            assert CONTROLS.search(text) is None


@pytest.mark.parametrize("key", ["uuid", "type", "cwd", "timestamp", "message", "gitBranch", "isSidechain"])
async def test_a_line_with_a_list_in_place_of_a_text_is_passed_over(hostile: Hostile, key: str) -> None:
    *lines, last = plain_lines()
    session_id = hostile.write(written([*lines, {**lines[3], key: []}, last]))
    entry = hostile.library.catalog.find(session_id)
    assert entry is not None
    assert (entry.title, entry.cost_usd) == ("T", 0.5)


async def test_lone_surrogates_are_kept_in_the_index(hostile: Hostile) -> None:
    *lines, last = plain_lines()
    summary = {"type": "summary", "summary": "\ud800", "leafUuid": "\ud800"}
    costs = {**last, "modelUsage": {"\ud800": {"costUSD": 2.0}}}
    session_id = hostile.write(written([summary, *lines, costs]))
    assert session_id in {entry.session_id for entry in hostile.library.catalog.list(text="first prompt")}
    assert {line.name: line.usd for line in (await hostile.cost("session")).lines}[session_id] == 2.0


def test_deeply_nested_values_count_as_empty() -> None:
    assert parse(b'{"a":' * 99 + b"1" + b"}" * 99) is not None
    assert parse(b'{"a":' * 150 + b"1" + b"}" * 150) is None
    assert parse(b'{"a":[' + b"[],{}," * 500 + b"1]}") is not None


# -- holes ------------------------------------------------------------------------------------------------------------

HOLE = 60 << 20


@pytest.fixture
def with_holes(tmp_path: Path) -> Path:
    """A transcript that is far longer than what it takes up on the disk."""
    path = tmp_path / "transcript.jsonl"
    first, second, *_ = lines = written(plain_lines()[3:5]).splitlines(keepends=True)
    with path.open("wb") as file:
        file.write(first)
        for _ in range(4):
            file.seek(HOLE, os.SEEK_CUR)
            file.write(b"\n")
        file.write(second)
        file.seek(HOLE, os.SEEK_CUR)
        file.truncate()
    if path.stat().st_blocks * 512 > HOLE:
        pytest.skip("the file system keeps no holes")
    assert len(lines) == 2
    return path


@pytest.mark.skipif(not hasattr(os, "SEEK_DATA"), reason="the system cannot tell of holes")
def test_only_written_parts_of_a_sparse_transcript_are_read(with_holes: Path) -> None:
    found = [*lines_from(str(with_holes))]
    first, *holes, second = [line for line, _ in found]
    assert [line["type"] for line in map(parse, (first, second)) if line is not None] == ["user", "assistant"]
    assert [parse(line) for line in holes] == [None] * 4
    assert sum(map(len, holes)) < 1 << 20
    with with_holes.open("rb") as file:
        for _, offset in found:
            file.seek(offset - 1)
            assert file.read(1) == b"\n"
    assert found[-1][1] == with_holes.stat().st_size - HOLE
    assert [line["type"] for line in read_lines(with_holes)] == ["user", "assistant"]


def test_lines_are_the_same_wherever_a_reading_begins(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    path.write_bytes(b"one\n\n" + b"x" * (3 << 20) + b"\nlast\nunfinished")
    lines = [*lines_from(str(path))]
    assert [len(line) for line, _ in lines] == [3, 0, 3 << 20, 4]
    for number, (_, offset) in enumerate(lines, 1):
        assert [*lines_from(str(path), offset)] == lines[number:]


# -- what is shown ----------------------------------------------------------------------------------------------------

EVIL = "a\x1b[31m\x9b2J\u202e\nb"


async def test_no_field_of_a_transcript_steers_a_terminal(hostile: Hostile) -> None:
    common = {"cwd": f"/proj/{EVIL}", "gitBranch": EVIL, "timestamp": f"2026-11-10\x1b[31m{EVIL}"}
    call = {"type": "tool_use", "id": EVIL, "name": EVIL, "input": {EVIL: [EVIL, {"command": EVIL}]}}
    lines: list[dict[str, Any]] = [
        {"type": "user", "uuid": "1", "message": {"content": EVIL}, **common},
        {"type": "assistant", "uuid": "2", "parentUuid": "1", "message": {"model": EVIL, "content": [call]}, **common},
        {"type": "user", "uuid": EVIL, "parentUuid": "2", "isCompactSummary": True, "message": {"content": EVIL}},
        {"type": "file-history-snapshot", "messageId": "1"},
    ]
    session_id = hostile.write(written(lines))
    texts = await hostile.read_all(session_id)
    assert [text for text in texts if CONTROLS.search(text)] == []
    assert any("(no result)" in text for text in texts)
    entry = hostile.library.catalog.find(session_id)
    assert entry is not None
    row = _row(entry, None)
    assert "\n" not in row
    assert "\u202e" not in row
    assert "\\u202e" in row


async def test_names_in_an_export_are_no_markup(hostile: Hostile) -> None:
    image = "<img src=x onerror=alert(1)>"
    call = {"type": "tool_use", "id": "t", "name": image, "input": {"command": "ls"}}
    lines: list[dict[str, Any]] = [
        {"type": "user", "uuid": "1", "cwd": "/proj", "gitBranch": image, "message": {"content": "hello"}},
        {"type": "assistant", "uuid": "2", "parentUuid": "1", "message": {"model": image, "content": [call]}},
        {"type": "tag", "tag": image},
        {"type": "custom-title", "customTitle": image},
    ]
    session_id = hostile.write(written(lines))
    forms: tuple[ExportFormat, ...] = ("html", "markdown")
    for form in forms:
        text = (await hostile.library.export(session_id, form, WHOLE)).read_text("utf-8")
        assert "<img" not in text
        assert text.count("&lt;img src=x") >= 4


# -- what there is elsewhere ------------------------------------------------------------------------------------------


def sessions_with(disk: Disk, outside: Path) -> list[str]:
    """Sessions that give as their directory one that is the project if a certain directory exists, or is a link."""
    (outside / "there").mkdir(parents=True)
    (outside / "link").symlink_to(disk.project)
    back = os.path.relpath(disk.project, outside / "there")
    places = [f"{outside}/there/{back}", f"{outside}/missing/{back}", str(outside / "link"), str(outside / "no-link")]
    spent = {"type": "cost-state", "modelUsage": {"opus": {"costUSD": 1.0}}}
    return [disk.write(lines(user("hello", cwd=place), spent)) for place in places]


def test_listing_by_name_reveals_no_other_sessions(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    there, missing, link, no_link = sessions_with(disk, tmp_path / "outside")
    project = str(disk.project)
    assert {*ids(disk.catalog, project=project)} == {there, link}
    assert {*ids(disk.catalog, project=project, by_name=True)} == {there, missing}
    assert ids(disk.catalog, project=f"{tmp_path}/outside/link", by_name=True) == []
    assert {link, no_link}.isdisjoint(ids(disk.catalog, project=project, by_name=True))


def test_costs_of_an_owner_reveal_no_other_sessions(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    there, missing, link, _ = sessions = sessions_with(disk, tmp_path / "outside")
    records = {each: Summary("alice", False, False, State.IDLE, {"opus": [0, 0, 0, 0, 1.0]}) for each in sessions}
    ledger = CostLedger(disk.catalog)
    found = {}
    for owner in (None, "alice"):
        query = CostQuery("session", owner=owner, project=str(disk.project))
        found[owner] = {line.name for line in ledger.report(records, {}, query).lines}
    assert found == {None: {there, missing, link}, "alice": {there, missing}}
