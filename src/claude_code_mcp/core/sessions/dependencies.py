"""What a session uses of its service and of the environment that it runs in.

A server may have clients with different environments: other credentials, another HOME, another PATH. A session runs in
that of the client that began it, or that of the client whose message made it go on: as with a terminal that is newly
opened. What follows from an environment is found by it, so that clients share what belongs to equal ones and nothing
else: the Claude Code executable and the shared MCP servers by all that is significant in it, transcripts, records and
leases by the CLI's configuration directory.

`SessionReplica` is a copy of each session elsewhere, from which another machine can go on with it: what the copy is
told, and what is believed of the frames that feed it. Without a fleet there is none, and nothing of it is called.
Claude Code reports what it has just written to its transcripts (`--session-mirror`): frames of the type
`transcript_mirror` with a file and its new entries. A command of the session can write such a frame too. So a frame
says nothing of which session it is about: that is the one whose process it came from. Of the file it names only whether
it is the transcript itself or that of a subagent is taken, as a name that cannot lead anywhere. What it says otherwise
goes into the copy of this very session, which the session's own transcript would as well.
"""

import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeGuard
from weakref import WeakValueDictionary

from ...plugins.sandbox.homes import Home, Homes, default_directory
from ..claude.protocol import Frame, Other, Raw
from ..config import Settings, client_settings, without_settings
from ..model.events import AuditEvent, Event
from ..model.options import LOCAL, Caller, ClientEnvironment
from ..private_files import entries_at, is_absence
from ..processes.environment import for_nested_servers, significant
from ..questions.broker import Broker
from ..redaction import Redactor
from ..state.session_holders import Leases
from ..state.session_records import MovedIds, SessionRecord, SessionRecords
from ..state.state_directory import database_in
from ..transcripts.session_catalogue import Catalogue
from ..transcripts.transcripts import EXTENSION, ProjectFolders, Transcripts, read_lines
from .background_tasks import StartTask
from .disk_threads import DiskThreads
from .launcher import Launcher
from .mcp_bridge import McpServerHost
from .neighbours import Neighbours
from .policy_enforcer import PolicyEnforcer
from .record_writer import RecordWriter
from .session_library import SessionLibrary
from .slots import Slots

_MIRROR = "transcript_mirror"
_SUBAGENT = re.compile(r"subagents/(?:[A-Za-z0-9_-]{1,80}/){0,2}agent-[A-Za-z0-9_-]{1,80}")
_NEVER_REPORTED = frozenset({"api-request", "api-request-shape", "api-request-blob"})
"""What Claude Code notes of its requests to the model in its transcript. It reports none of it, and resumes without."""
_DEEPEST = 3
_MOST_FILES = 10_000

LocalFiles = Callable[[], Iterable[tuple[str, Iterator[Raw]]]]
"""Reads the files of a conversation from this machine's disk, each with its entries: "" is the transcript itself.
Blocks."""


class SessionReplica(Protocol):
    """Takes everything that another machine needs to go on with a session. Only `admit`, `caught_up` and `remove`
    wait."""

    async def admit(self, session_id: str, owner: str, *, stays: bool = False) -> None:
        """Before a session is given a message: raises ClaudeCodeError unless this machine may write the session. One
        that `stays` on this machine is not copied, and needs nobody's leave but that of the machine itself."""

    def check_held(self, session_id: str) -> None:
        """With the acceptance of a message, nothing awaited in between: raises SessionBusy if the session was given
        away since `admit`, while the message waited."""

    def process_started(self, session_id: str, files: LocalFiles) -> None:
        """A process writes the session from now on; `files` reads all that it has written, whenever it is called."""

    def entries_written(self, session_id: str, path: str, entries: list[Raw], size: int) -> None:
        """These entries, of so many bytes, were added to a file of the conversation."""

    def process_gone(self, session_id: str) -> None:
        """The process has ended. It may have written more than it has reported."""

    def record_written(self, record: SessionRecord) -> None:
        """The record of a session has changed on this machine's disk."""

    def behind(self, session_id: str) -> bool:
        """Whether the copy lacks something that was reported."""

    def elsewhere(self) -> Collection[str]:
        """Sessions with files on this machine that another one goes on with: what they cost is counted there."""

    async def remove(self, session_id: str, owner: str) -> None:
        """Before a session is deleted on this machine's disk: nobody can go on with the copy any more. Raises
        ClaudeCodeError if that cannot be done now; then the session is not deleted."""

    async def caught_up(self, session_id: str) -> None:
        """Waits until the copy has everything that was reported, or is certain to get the rest later: a turn ends after
        this. Never raises."""


def mirrored_entries(frame: Other, session_id: str) -> tuple[str, list[Raw]] | None:
    """The file and the entries that such a frame adds to this session's conversation; None for one that is not of this
    session or not well-formed: nothing of that is kept."""
    path = _path_of(frame.raw.get("filePath"), session_id)
    entries = frame.raw.get("entries")
    if path is None or not isinstance(entries, list):
        return None
    return path, [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("type"), str)]


def is_mirror(frame: Frame) -> TypeGuard[Other]:
    return isinstance(frame, Other) and frame.raw.get("type") == _MIRROR


def _path_of(file: object, session_id: str) -> str | None:
    if not isinstance(file, str) or not file.endswith(EXTENSION) or len(file) > 8192:
        return None
    parts = file.removesuffix(EXTENSION).replace("\\", "/").split("/")
    if parts[-1] == session_id:
        return ""
    if session_id not in parts:
        return None
    below = "/".join(parts[parts.index(session_id) + 1 :])
    return below if is_subagent(below) else None


def is_subagent(path: str) -> bool:
    """Whether this names the transcript of a subagent, relative to the directory of its session and without ending."""
    return _SUBAGENT.fullmatch(path) is not None


def local_files(transcripts: Transcripts, session_id: str, cwd: str) -> Iterator[tuple[str, Iterator[Raw]]]:
    """The files of a conversation with their entries, as they are on disk, without those that are never reported. No
    link is followed.

    TranscriptUnreadable if one of them cannot be read; no file if there is none. Blocks.
    """
    main = transcripts.path_of(session_id, cwd)
    if main is None:
        return
    yield "", _reported(main)
    below = str(main).removesuffix(EXTENSION)
    for path in itertools.islice(_subagents(below, "subagents", _DEEPEST), _MOST_FILES):
        yield path, _reported(main.parent / session_id / (path + EXTENSION))


def _reported(path: Path) -> Iterator[Raw]:
    return (line for line in read_lines(path) if line.get("type") not in _NEVER_REPORTED)


def _subagents(directory: str, relative: str, depth: int) -> Iterator[str]:
    try:
        found = entries_at(os.path.join(directory, relative))
    except OSError as error:
        if not is_absence(error):
            raise
        return
    for item in sorted(found, key=lambda item: item.name):
        path = f"{relative}/{item.name}"
        if is_subagent(path.removesuffix(EXTENSION)) and path.endswith(EXTENSION):
            yield path.removesuffix(EXTENSION)
        elif depth > 1 and re.fullmatch(r"[A-Za-z0-9_-]{1,80}", item.name):
            yield from _subagents(directory, path, depth - 1)


# -- what sessions use -------------------------------------------------------------------------------------------------


Hosted = Callable[[], AbstractAsyncContextManager[McpServerHost | None]]
"""Within what it returns there are MCP servers, or there are none."""


@dataclass(frozen=True, slots=True)
class Stores:
    """What is kept of the sessions below one configuration directory of the CLI."""

    leases: Leases
    transcripts: Transcripts
    moved_ids: MovedIds
    recorder: RecordWriter
    library: SessionLibrary

    @classmethod
    def below(
        cls,
        config_dir: str,
        settings: Settings,
        start_task: StartTask,
        redact: Callable[[Any], Any],
        projects: ProjectFolders,
        replica: SessionReplica | None = None,
    ) -> "Stores":
        database = database_in(settings.state_dir)
        leases, records = Leases(database.directory), SessionRecords(database, config_dir)
        return cls(
            leases,
            Transcripts(projects),
            MovedIds(database, config_dir),
            RecordWriter(records, start_task, replica.record_written if replica is not None else None),
            SessionLibrary(config_dir, settings.state_dir, redact, records=records, leases=leases, projects=projects),
        )

    @property
    def catalogue(self) -> Catalogue:
        return self.library.catalogue

    @property
    def threads(self) -> DiskThreads:
        """For everything that reads transcripts."""
        return self.library.threads


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class SessionDeps:
    """The parts of a service that the sessions of one environment use; see `ClientEnvironments`."""

    settings: Settings
    launcher: Launcher
    stores: Stores
    broker: Broker
    slots: Slots
    enforcer: PolicyEnforcer
    start_task: StartTask
    """Runs work that belongs to the service, never to a caller."""
    neighbours: Neighbours
    hosted: Hosted
    """Around every use of the MCP servers that these sessions share."""
    redact: Callable[[Any], Any]
    """Removes secrets from a text or a JSON value."""
    notice: Callable[[str, str, Event], None]
    """Called with a session's id, its owner and the event, for every event of every session."""
    audit: Callable[[AuditEvent], None]
    """Writes an act to the audit trail and counts it."""
    moved: Callable[[str, str], None]
    """Called with the old and the new id when a session goes on under another one."""
    known: Callable[[str], bool]
    """Whether a session with this id is in memory, whoever's it is."""
    replica: SessionReplica | None = None
    """Where everything goes that another machine needs to go on with a session; None without a fleet."""
    directory: str | None = None
    """Where the client is, from which relative paths start; None: where this server is."""


# -- workplaces -------------------------------------------------------------------------------------------------------


HostOf = Callable[[ClientEnvironment], AbstractAsyncContextManager[McpServerHost | None]]
"""The MCP servers that the sessions of a client share with those of clients that have the same ones."""


def environment_key(environment: Mapping[str, str]) -> str:
    """Equal for environments in which sessions are to behave the same. Never to be written to disk: it is made of
    secrets, and short ones could be guessed from it."""
    content = json.dumps(sorted(significant(environment).items()))
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


class ClientEnvironments:
    """Finds the parts that the sessions of a client use, and makes them where there are none for its environment."""

    def __init__(
        self,
        own: SessionDeps,
        redactor: Redactor,
        own_addresses: list[str],
        homes: Homes,
        host_of: HostOf | None = None,
        hosts: Mapping[str, McpServerHost] | None = None,
    ) -> None:
        """`own` is for callers without an environment of their own, who get that of this process. `redactor` learns
        the secrets of every client, for as long as a session or a connection uses them. `homes` says which callers have
        a Claude Code directory or a sandbox of their own. Without `host_of`, all sessions share the MCP servers of this
        process; `hosts` are those of callers that share them with nobody."""
        self._own = own
        self._redactor = redactor
        self._own_addresses = own_addresses
        self._homes = homes
        self._host_of = host_of
        # Not a copy, also of none: callers may come later.
        self._hosts: Mapping[str, McpServerHost] = {} if hosts is None else hosts
        self._stores = {_real(own.launcher.config_dir): own.stores}
        # Weak: what belongs to an environment lives as long as a session or a connection uses it.
        self._known: WeakValueDictionary[tuple[str, str, object], SessionDeps] = WeakValueDictionary()

    @property
    def all_stores(self) -> list[Stores]:
        return list(self._stores.values())

    def of(self, caller: Caller) -> SessionDeps:
        """What the sessions of a caller use. PermissionDenied if they must run in a sandbox and there can be none."""
        principal, client = caller.principal, caller.environment
        is_plain = principal not in self._hosts and (self._homes.all_plain or self._homes.is_plain(principal))
        if client is None and is_plain:
            return self._own
        variables = self._own.launcher.environment if client is None else client.variables
        directory = "" if client is None else client.directory
        # With the profile: if that becomes another one, what is made from now on has its directories and its sandbox.
        own_parts = None if is_plain else (principal, self._homes.profile_of(principal))
        place = environment_key(variables), directory, own_parts
        known = self._known.get(place)
        if known is None:
            known = self._known[place] = self._make(principal, client)
        return known

    def hosted(self, client: ClientEnvironment) -> AbstractAsyncContextManager[McpServerHost | None]:
        """The MCP servers that the sessions of a client share, there within this context."""
        return self.of(Caller(LOCAL, client)).hosted()

    @contextmanager
    def connected(self, client: ClientEnvironment | None) -> Iterator[None]:
        """Within this context a client is connected, and its secrets are redacted everywhere; longer, if sessions of
        its environment run on. A client that is gone loses neither its sessions nor its questions."""
        # Held by this frame alone: what belongs to an environment lives as long as somebody has it.
        kept = self.of(Caller(LOCAL, client))
        yield
        del kept

    def _make(self, principal: str, client: ClientEnvironment | None) -> SessionDeps:
        own, settings, hosted = self._own, self._own.settings, self._own.hosted
        variables, enforcer = own.launcher.environment, own.enforcer
        if principal in self._hosts:
            hosted = partial(nullcontext, self._hosts[principal])
        if client is not None:
            variables = client.variables
            settings = client_settings(settings, variables, own.launcher.environment)
            hosted = hosted if self._host_of is None else partial(self._host_of, client)
        directory = default_directory(settings, client.directory if client is not None else None)
        launcher = make_launcher(settings, self._homes.of(principal, variables, directory), self._own_addresses)
        if client is not None:
            enforcer = enforcer.for_client(directory, variables)
        made = replace(
            own,
            settings=settings,
            launcher=launcher,
            stores=self._stores_below(launcher.config_dir, own=launcher.home.own),
            enforcer=enforcer.guarding(
                launcher.config_dir, str(settings.state_dir), enclosed=launcher.home.enclosure is not None
            ),
            hosted=hosted,
            directory=client.directory if client is not None else None,
        )
        self._redactor.learn(without_settings(launcher.home.secrets), owner=made)
        return made

    def _stores_below(self, config_dir: str, *, own: bool) -> Stores:
        """One set for each directory, whatever it is called: two would not know of each other's writes."""
        real = _real(config_dir)
        if real not in self._stores:
            linked = self._own.stores.transcripts.projects.linked
            projects = ProjectFolders.below(config_dir, own=own, linked=linked)
            parts = self._own.settings, self._own.start_task, self._own.redact
            self._stores[real] = Stores.below(config_dir, *parts, projects, self._own.replica)
        return self._stores[real]


def make_launcher(settings: Settings, home: Home, own_addresses: list[str]) -> Launcher:
    """Makes the launcher of the sessions that live in this home."""
    nested = for_nested_servers(home.environment, settings.max_depth, str(settings.state_dir))
    return Launcher(
        home,
        environment_key(home.environment),
        settings.claude_path,
        settings.start_timeout,
        # A server inside a sandbox could not see the state that all servers of one user share.
        nested if home.enclosure is None else {},
        own_addresses,
    )


def _real(directory: str) -> str:
    return os.path.realpath(directory)
