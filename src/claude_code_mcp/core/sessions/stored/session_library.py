"""Reads, names, marks, copies, exports and removes the sessions on disk, and adds up their costs.

Callers check the ownership of a session. The disk is read in separate threads (`DiskThreads`). A session is removed
under its lease, and only while no process has it open: ours, another server's or one in a terminal.
"""

import base64
import contextlib
import glob
import os
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from ...claude.user_config import process_with
from ...errors import InvalidArgument, SessionBusy, SessionNotFound
from ...model.caller import LOCAL
from ...model.image import MEDIA_TYPES, Image, media_type
from ...model.text import iso
from ...model.worktree import Worktree
from ...private_files import TEMPORARY, open_private, private_directory, replace_file
from ...state.session_leases import Leases
from ...state.session_marks import Mark
from ...state.session_records import MovedIds, SessionRecord, SessionRecords, Summary
from ...state.state_directory import database_in
from ...transcripts.conversation import ConversationTurn, Item, read_prompt_images, read_turn, subagents
from ...transcripts.conversation_pages import ConversationPage, Extent, read_page_before, whole_item
from ...transcripts.cost_table import CostLedger, CostQuery, Costs, Grouping, Split
from ...transcripts.index import File, stat_file
from ...transcripts.outline import Outline, read_outline
from ...transcripts.session_catalog import Catalog, CatalogEntries, Entry
from ...transcripts.timeline import Timeline, WaitTime, read_timeline
from ...transcripts.transcript_export import Detail, markdown, page, read_page, without_secrets
from ...transcripts.transcript_reader import grown_lines, grown_messages
from ...transcripts.transcripts import ProjectFolders, SessionFiles, unreadable_refused
from ...transcripts.watched_files import FileFollower
from .disk_threads import DiskThreads

ExportFormat = Literal["markdown", "html"]
_SUFFIX: dict[ExportFormat, str] = {"markdown": ".md", "html": ".html"}
_MAX_OUTLINES = 8
_MAX_THREADS = 4
_P = ParamSpec("_P")
_Result = TypeVar("_Result")
_Part = TypeVar("_Part")
_EXCERPT = 60
"""Characters shown before and after a match."""


@dataclass(frozen=True, slots=True)
class TextHit:
    """A place in a conversation; `item_id` is None where it is the prompt."""

    turn: int
    item_id: str | None
    excerpt: str


@dataclass(frozen=True, slots=True)
class ReadPage:
    """A page of a conversation, and how to continue."""

    session_id: str
    title: str
    text: str
    turns: int
    next_cursor: str | None
    agents: tuple[str, ...]
    """The subagents whose transcripts can be read."""
    left_behind: int
    """Messages on abandoned branches."""


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A page of a conversation as data, with the conversation that it belongs to."""

    session_id: str
    title: str
    page: ConversationPage
    turns: int
    agents: tuple[str, ...]
    left_behind: int


def in_thread(
    work: Callable[Concatenate["SessionLibrary", _P], _Result],
) -> Callable[Concatenate["SessionLibrary", _P], Coroutine[Any, Any, _Result]]:
    """Turn a method that blocks on the disk into an async one that runs in the library's threads."""

    @wraps(work)
    async def run(self: "SessionLibrary", /, *args: _P.args, **kwargs: _P.kwargs) -> _Result:
        return await self.threads.run(work, self, *args, **kwargs)

    return run


def with_recorded_costs(entries: CatalogEntries, recorded: Mapping[str, Summary]) -> CatalogEntries:
    """The entries with recorded costs where a transcript has less: Claude Code writes them only when a process exits
    normally."""
    found = []
    for entry in entries:
        summary = recorded.get(entry.session_id)
        usd = sum(row[4] for row in summary.usage.values()) if summary is not None else 0.0
        usd = max(usd, entry.cost_usd or 0.0)
        # What was recorded needs no estimate, unless a terminal has continued the session.
        estimated = entry.estimated_usd if usd < (entry.estimated_usd or 0.0) else None
        found.append(replace(entry, cost_usd=usd or entry.cost_usd, estimated_usd=estimated))
    return found


class SessionLibrary:
    """The sessions below one configuration directory of the CLI. Methods raise TranscriptUnreadable if a transcript
    cannot be read now."""

    def __init__(
        self,
        config_dir: str,
        state_dir: Path,
        redact: Callable[[Any], Any],
        *,
        records: SessionRecords | None = None,
        leases: Leases | None = None,
        projects: ProjectFolders | None = None,
    ) -> None:
        """`redact` removes secrets from strings and data; records, leases and project folders are the server's, if
        there is one."""
        projects = projects or ProjectFolders.below(config_dir, linked=True)
        self.catalog = Catalog(config_dir, state_dir, projects)
        self._config_dir = config_dir
        self._state_dir = state_dir
        self._redact = redact
        database = database_in(state_dir)
        self._records = records or SessionRecords(database, config_dir)
        self._leases = leases or Leases(state_dir)
        self._moved_ids = MovedIds(database, config_dir)
        self._files = SessionFiles(config_dir, projects)
        self._follower = FileFollower()
        self._ledger = CostLedger(self.catalog, self._records.config_dir)
        self.threads = DiskThreads(_MAX_THREADS)
        # One at a time, in a separate thread: each may read every transcript.
        self.searches = DiskThreads(1)
        self._counting = DiskThreads(1)
        self._outlines: OrderedDict[tuple[File, bool], Outline] = OrderedDict()

    # -- reading --------------------------------------------------------------------------------------------------

    def entries(self, **wanted: Any) -> CatalogEntries:
        """The sessions of `Catalog.list`, with the costs that are on record. Blocks on the disk."""
        recorded: Mapping[str, Summary] = {}
        with contextlib.suppress(OSError):  # a list without them is better than none
            recorded = self._records.summaries()
        return with_recorded_costs(self.catalog.list(**wanted), recorded)

    @in_thread
    def read(self, session_id: str, *, cursor: str, size: int, detail: Detail, agent: str | None = None) -> ReadPage:
        """One page of a conversation, or of a subagent's. SessionNotFound if it has no transcript."""
        entry, path = self._found(session_id)
        agents, read_from, outline = self._conversation(session_id, path, agent)
        try:
            with unreadable_refused(session_id):
                shown = read_page(read_from, outline, cursor, size, detail, self._redact)
        except ValueError:
            raise InvalidArgument("cursor: must be the number of a turn, or nextCursor.", field="cursor") from None
        title = str(self._redact(entry.title or entry.first_prompt or ""))
        return ReadPage(
            session_id,
            title,
            shown.text,
            len(outline.turns),
            shown.next_cursor,
            tuple(map(self._redact, agents)),
            outline.left_behind,
        )

    @in_thread
    def page_before(
        self, session_id: str, before: str | None, extent: Extent, *, agent: str | None = None
    ) -> StoredConversation:
        """The turns before a place in a conversation, or at its end, as data. SessionNotFound if there is no
        transcript."""
        entry, path = self._found(session_id)
        agents, read_from, outline = self._conversation(session_id, path, agent)
        try:
            with unreadable_refused(session_id):
                page = read_page_before(read_from, outline, before, extent, self._redact)
        except ValueError:
            raise InvalidArgument("before: must be the `previous` value of an earlier page.", field="before") from None
        title = str(self._redact(entry.title or entry.first_prompt or ""))
        named = tuple(map(self._redact, agents))
        return StoredConversation(session_id, title, page, len(outline.turns), named, outline.left_behind)

    @in_thread
    def item(self, session_id: str, turn: int, item_id: str, *, agent: str | None = None) -> Item:
        """One complete item of a turn. InvalidArgument if there is none."""
        _, path = self._found(session_id)
        _, read_from, outline = self._conversation(session_id, path, agent)
        with unreadable_refused(session_id):
            found = whole_item(read_from, outline, turn, item_id, self._redact)
        if found is None:
            raise InvalidArgument(f"item: turn {turn} has no such item.", field="item")
        return found

    @in_thread
    def find(self, session_id: str, wanted: str, most: int) -> list[TextHit]:
        """The matches of a text in a conversation, ignoring case, newest first, at most `most`."""
        wanted = wanted.lower()
        _, path = self._found(session_id)
        _, read_from, outline = self._conversation(session_id, path, None)
        hits: list[TextHit] = []
        with unreadable_refused(session_id):
            for number in range(len(outline.turns), 0, -1):
                turn = read_turn(read_from, outline.turns[number - 1])
                parts = [(None, turn.prompt or ""), *((item.id, item.text or item.result) for item in turn.items)]
                for item_id, text in reversed(parts):
                    # Redact first: a match must not reveal that a secret is there.
                    shown = str(self._redact(text))
                    at = shown.lower().find(wanted)
                    if at >= 0:
                        excerpt = " ".join(shown[max(0, at - _EXCERPT) : at + len(wanted) + _EXCERPT].split())
                        hits.append(TextHit(number, item_id, excerpt))
                    if len(hits) >= most:
                        return hits
        return hits

    @in_thread
    def timeline(self, session_id: str, logged: Mapping[str, WaitTime]) -> Timeline:
        """When the last turns of a conversation ran and waited for a person."""
        _, path = self._found(session_id)
        _, read_from, outline = self._conversation(session_id, path, None)
        with unreadable_refused(session_id):
            return read_timeline(read_from, outline, logged, self._redact)

    @in_thread
    def prompt_image(self, session_id: str, turn: int, number: int) -> Image:
        """One of the images that went with the prompt of a turn, counted from 0. InvalidArgument if there is none."""
        _, path = self._found(session_id)
        _, read_from, outline = self._conversation(session_id, path, None)
        with unreadable_refused(session_id):
            known = 1 <= turn <= len(outline.turns)
            found = read_prompt_images(read_from, outline.turns[turn - 1]) if known else []
        # A transcript is a claim: check that the data really is an image.
        with contextlib.suppress(IndexError, ValueError):
            data = base64.b64decode(found[number], validate=True)
            if (kind := media_type(data)) is not None and kind in MEDIA_TYPES:
                return Image(kind, found[number])
        raise InvalidArgument(f"image: turn {turn} has no such image.", field="image")

    def _conversation(self, session_id: str, path: str, agent: str | None) -> tuple[dict[str, str], str, Outline]:
        """The subagents of a session, and the file and outline of its conversation or of one subagent's."""
        with unreadable_refused(session_id):
            agents = subagents(path)
        if agent is not None and agent not in agents:
            raise InvalidArgument(f"agent: session {session_id} has no subagent {agent[:100]!r}.", field="agent")
        read_from = path if agent is None else agents[agent]
        return agents, read_from, self._outline(read_from, of_subagent=agent is not None)

    def _found(self, session_id: str) -> tuple[Entry, str]:
        entry, path = self.catalog.find(session_id), self.catalog.path_of(session_id)
        if entry is None or path is None:
            raise SessionNotFound(f"Session {session_id} has no transcript.", session_id=session_id)
        return entry, path

    def _outline(self, path: str, *, of_subagent: bool = False) -> Outline:
        """Recent outlines are kept: pages of one conversation are requested one after the other."""
        with unreadable_refused(Path(path).stem):
            file = stat_file(path)
            if file is None:
                return Outline()
            key = (file, of_subagent)
            known = self._outlines.get(key)
            if known is None:
                known = self._outlines[key] = read_outline(path, of_subagent=of_subagent)
        while len(self._outlines) > _MAX_OUTLINES:
            self._outlines.popitem(last=False)
        return known

    async def follow(self, session_id: str, *, offset: int | None = None) -> AsyncIterator[list[str]]:
        """New lines of a transcript after an offset, or from now on, as readable lines, at most twice a second. Never
        ends."""
        async for lines, _ in self._growth(session_id, offset, grown_lines):
            yield lines

    async def follow_messages(self, session_id: str, offset: int) -> AsyncIterator[tuple[list[Mapping[str, Any]], int]]:
        """The messages of a transcript after an offset, and the next offset, at most twice a second. Never ends."""
        async for grown in self._growth(session_id, offset, grown_messages):
            yield grown

    async def _growth(
        self, session_id: str, offset: int | None, read: Callable[[str, int], tuple[list[_Part], int]]
    ) -> AsyncIterator[tuple[list[_Part], int]]:
        _, path = await self.threads.run(self._found, session_id)
        file = stat_file(path)
        reached = offset if offset is not None else file.size if file is not None else 0
        # Watched before it is read, so that nothing in between is missed.
        async with self._follower.follow(path) as following:
            while True:
                parts, reached = await self.threads.run(read, path, reached)
                if parts:
                    yield parts, reached
                await following.changed()

    @in_thread
    def transcript_size(self, session_id: str) -> int:
        """Bytes of a transcript; 0 if there is none."""
        path = self.catalog.path_of(session_id)
        with unreadable_refused(session_id):
            file = stat_file(path) if path is not None else None
        return file.size if file is not None else 0

    # -- changes--------------------------------------------------------------------------------------------------

    @in_thread
    def rename(self, session_id: str, title: str) -> str:
        shown = self._files.set_title(session_id, title)
        self._mark_for_fleet(session_id, Mark.RENAMED)
        return shown

    @in_thread
    def tag(self, session_id: str, tag: str) -> str:
        shown = self._files.set_tag(session_id, tag)
        self._mark_for_fleet(session_id, Mark.RENAMED)
        return shown

    @in_thread
    def mark(self, session_id: str, mark: Mark, on: bool) -> None:
        self._found(session_id)
        self.catalog.marks.set(session_id, mark, on)
        self._mark_for_fleet(session_id, Mark.RENAMED)

    def _mark_for_fleet(self, session_id: str, mark: Mark) -> None:
        """On a machine of a fleet, ask its runner to update or remove the fleet's copy, which lists show while the
        machine is offline."""
        if (self._state_dir / "fleet").is_dir():
            self.catalog.marks.set(session_id, mark, True)

    @in_thread
    def copy(self, session_id: str, owner: str, title: str | None) -> str:
        """Create an independent session with the same conversation and options; return its id."""
        new_id, (entry, _) = str(uuid.uuid4()), self._found(session_id)
        record = self._records.read(session_id)
        # The record is written before the transcript: without it, the copy would have no limits.
        if record is not None:
            changes = {"session_id": new_id, "revision": 0, "running_since": None, "usage": type(record.usage)()}
            self._records.write(record.model_copy(update=changes))
        elif owner != LOCAL:
            raise SessionNotFound(f"There is no session {session_id}.", session_id=session_id)
        try:
            name = title or f"{entry.title or entry.first_prompt or 'Session'} (fork)"
            self._files.copy(session_id, new_id, name[:200])
        except BaseException:
            self._records.remove(new_id)
            raise
        return new_id

    async def remove(self, session_id: str, before: Callable[[], Awaitable[None]] | None = None) -> None:
        """Remove a session permanently. SessionBusy while it is in use; then nothing is removed.

        `before` is called before the files are removed, when no process can run the session any more; if it raises, the
        files stay. Without it, on a machine of a fleet, the pending removal of the fleet's copy is noted on disk. Must
        not be cancelled: a thread may be working on the files.
        """
        with contextlib.ExitStack() as held:
            await self.threads.run(held.enter_context, self._alone(session_id))
            if await self.threads.run(self.catalog.find, session_id) is None:
                raise SessionNotFound(f"There is no session {session_id}.", session_id=session_id)
            # Before the files: a copy that is left behind would bring the session back.
            if before is not None:
                await before()
            else:
                await self.threads.run(self._mark_for_fleet, session_id, Mark.ORPHANED_COPY)
            await self.threads.run(self._remove, session_id)

    def record_of(self, session_id: str) -> SessionRecord | None:
        """This machine's record of a session; None if there is none. Blocks on the disk."""
        return self._records.read(session_id)

    def _remove(self, session_id: str) -> None:
        # The conversation is needed to find the session: if this is interrupted before its removal, the session can be
        # deleted again. A later interruption leaves only a record without a conversation, which is cleaned up
        # eventually.
        exported = glob.escape(session_id)
        for pattern in (f"{exported}*", f".{exported}*{TEMPORARY}"):  # the second: an export that was cut short
            for path in (self._state_dir / "exports").glob(pattern):
                path.unlink(missing_ok=True)
        self._files.remove(session_id)
        self._records.remove(session_id)
        for mark in (Mark.PINNED, Mark.ARCHIVED, Mark.RENAMED):
            self.catalog.marks.set(session_id, mark, False)

    @contextlib.contextmanager
    def _alone(self, session_id: str) -> Iterator[None]:
        """Context in which no process runs the session; SessionBusy if one does."""
        # The lease first: no server can start a process between the check and what follows.
        lease = self._leases.take(session_id)
        try:
            pid = process_with(session_id, self._config_dir)
            if pid is not None:
                raise SessionBusy(
                    f"Session {session_id} is open in another Claude Code process ({pid}).", session_id=session_id
                )
            yield
        finally:
            lease.release()

    @contextlib.contextmanager
    def worktree_of(self, session_id: str) -> Iterator[Worktree]:
        """Context that yields the worktree of a session, which no process runs in the meantime. SessionBusy if one
        does, InvalidArgument if it has no worktree. Blocks on the disk."""
        with self._alone(session_id):
            record = self._records.read(session_id)
            worktree = record.options.worktree if record is not None else None
            if not isinstance(worktree, Worktree):
                raise InvalidArgument(f"Session {session_id} does not use a worktree.")
            yield worktree

    # -- export ---------------------------------------------------------------------------------------------------

    @in_thread
    def export(self, session_id: str, form: ExportFormat, detail: Detail, target: Path | None = None) -> Path:
        """Write a conversation to a private file, without secrets; by default in the state directory. An older one is
        replaced."""
        entry, path = self._found(session_id)
        if target is None:
            exports = private_directory(self._state_dir / "exports")
            target = exports / f"{session_id}{_SUFFIX[form]}"
        redact = self._redact
        title = str(redact(entry.title or entry.first_prompt or session_id))
        write = page if form == "html" else markdown
        # Next to the target, and renamed at the end: readers see the old file or the complete new one.
        unfinished = target.with_name(f".{target.name}.{uuid.uuid4().hex}{TEMPORARY}")
        try:
            with open(open_private(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w", encoding="utf-8") as file:
                facts = [(name, str(redact(value))) for name, value in _facts(entry)]
                for piece in write(title, facts, self._all_turns(path), detail):
                    file.write(piece.encode("utf-8", "replace").decode())
            os.replace(unfinished, target)
        finally:
            unfinished.unlink(missing_ok=True)
        return target

    @in_thread
    def keep_text(self, session_id: str, suffix: str, text: str) -> Path:
        """Write text about a session, without secrets, to a file next to the exports; an older one is replaced."""
        target = private_directory(self._state_dir / "exports") / f"{session_id}{suffix}"
        replace_file(target, text.encode("utf-8", "replace"))
        return target

    def _all_turns(self, path: str) -> Iterator[ConversationTurn]:
        for places in self._outline(path).turns:
            with unreadable_refused(Path(path).stem):
                turn = read_turn(path, places)
            yield without_secrets(turn, self._redact)

    # -- costs ----------------------------------------------------------------------------------------------------

    @in_thread
    def owners(self) -> list[str]:
        """The owners of sessions that servers on this state directory have run, wherever their transcripts are."""
        return sorted({summary.owner for summary in self._records.summaries().values()})

    async def costs(
        self,
        by: Grouping,
        *,
        principal: str,
        since: str = "",
        project: str | None = None,
        most: int | None = None,
        without: Iterable[str] = (),
        recorded: bool = False,
        split: Split | None = None,
    ) -> Costs:
        """The costs of everything on disk, `without` these sessions. For a principal other than the local user, and
        with `recorded` for that one too, only the sessions that a server has run for them. In at most `most` groups,
        divided by `split`."""
        owner = None if principal == LOCAL and not recorded else principal
        query = CostQuery(by, since, owner, project, most, frozenset(without), split)
        return await self._counting.run(
            lambda: self._ledger.report(self._records.summaries(), self._moved_ids.all(), query)
        )


def _facts(entry: Entry) -> Iterable[tuple[str, str]]:
    facts = {
        "Session": entry.session_id,
        "Project": entry.project,
        "Branch": entry.branch,
        "Model": entry.model,
        "Begun": iso(entry.created)[:19].replace("T", " ") if entry.created else None,
        "Last used": iso(entry.last_used)[:19].replace("T", " "),
        "Cost": f"${entry.cost_usd:.4f}" if entry.cost_usd is not None else None,
        "Tag": entry.tag,
    }
    return [(name, value) for name, value in facts.items() if value]
