"""What sessions have cost by day and model, kept in the index of transcripts and added up there.

`CostTable` is the tables: what is kept of each session, and the sums. `CostLedger` keeps them up to date: a session is
counted again only when its transcript or its record has changed, so that a report reads no transcript that it has read
before. Each session has a `basis` beside its costs, which names what they were counted from; sessions are compared by
it when a process first asks, and whenever another process has written to the index. A transcript that cannot be read
now keeps the costs that it had, and is counted at the next call. All functions block on the disk.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..state.session_records import Summary
from .catalogue import Catalogue
from .cost_report import CostLine, Costs, Grouping, SpentSession, daily_costs, spent_session
from .file_changes import File
from .index import FileIndex, storable
from .transcript_summary import NO_DAY

if TYPE_CHECKING:
    import sqlite3

_AT_ONCE = 200
"""Sessions that are counted in one transaction."""
_MOST_ANSWERS = 64
_NAMES: Mapping[Grouping, str] = {
    "session": "session_id",
    "project": "project",
    "model": "model",
    "day": f"CASE day WHEN '{NO_DAY}' THEN 'unknown' ELSE day END",
}
_SUMS = "total(usd), total(input), total(output), count(DISTINCT session_id), total(unpriced)"


@dataclass(frozen=True, slots=True)
class CostQuery:
    """Which costs, and how they are grouped."""

    by: Grouping
    since: str = ""
    """The first day that counts, such as `2026-11-01`."""
    owner: str | None = None
    """None for the sessions of everybody."""
    project: str | None = None
    """A directory, however it is spelled."""
    most: int | None = None
    """At most so many groups: the latest days, or the most expensive of others."""


class CountedSession(NamedTuple):
    """A session with its costs, whose they are, and what they were counted from."""

    spent: SpentSession
    owner: str
    basis: str


class CostTable:
    """The costs in one index. Every method returns None where that cannot be used now."""

    def __init__(self, index: FileIndex) -> None:
        self._index = index

    def version(self) -> tuple[int, int] | None:
        """Another one whenever somebody else has written to the index, or it was begun anew."""
        found = self._index.run(lambda db: int(db.execute("PRAGMA data_version").fetchone()[0]))
        return None if found is None else (self._index.generation, found)

    def basis(self) -> dict[str, str] | None:
        """What the costs of every session were counted from, by id."""
        return self._index.run(lambda db: dict(db.execute("SELECT session_id, basis FROM spent_sessions")))

    def put(self, sessions: Iterable[CountedSession], gone: Iterable[str] = ()) -> bool | None:
        """Replaces what is kept of these sessions and forgets those that are gone, all or nothing."""
        sessions, gone = [*sessions], [*gone]

        def work(db: "sqlite3.Connection") -> bool:
            ids = [(session_id,) for session_id in (*(counted.spent.session_id for counted in sessions), *gone)]
            db.executemany("DELETE FROM costs WHERE session_id = ?", ids)
            db.executemany("DELETE FROM spent_sessions WHERE session_id = ?", ids)
            for spent, owner, basis in sessions:
                values = (spent.session_id, basis, owner, storable(spent.project), storable(spent.title))
                db.execute("INSERT INTO spent_sessions VALUES (?, ?, ?, ?, ?)", values)
                # Names of models that differ only in what no database takes are one.
                rows = ((row[0], row[1], storable(row[2]), *row[3:]) for row in daily_costs(spent))
                db.executemany("INSERT OR REPLACE INTO costs VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            return True

        return self._index.run(work)

    def report(self, query: CostQuery) -> Costs | None:
        """The sums, from the tables alone."""
        projects = None
        if query.project is not None:
            wanted = os.path.realpath(query.project)
            known = self._index.run(lambda db: db.execute("SELECT DISTINCT project FROM spent_sessions").fetchall())
            projects = [project for (project,) in known or () if os.path.realpath(project) == wanted]
        return self._index.run(lambda db: _report(db, query, projects))


def _report(db: "sqlite3.Connection", query: CostQuery, projects: list[str] | None) -> Costs:
    db.execute("BEGIN")  # lines and total are of one moment
    if projects is not None:
        db.execute("CREATE TEMP TABLE IF NOT EXISTS wanted_projects (project TEXT PRIMARY KEY)")
        db.execute("DELETE FROM wanted_projects")
        db.executemany("INSERT INTO wanted_projects VALUES (?)", [(project,) for project in projects])
    conditions, values = ["day >= ?"], [query.since]
    if query.owner is not None:
        conditions.append("owner = ?")
        values.append(query.owner)
    if projects is not None:
        conditions.append("project IN (SELECT project FROM wanted_projects)")
    joined = len(conditions) > 1 or query.by in ("session", "project")
    source = "costs JOIN spent_sessions USING (session_id)" if joined else "costs"
    where = f"FROM {source} WHERE {' AND '.join(conditions)}"
    name, title = _NAMES[query.by], "max(title)" if query.by == "session" else "NULL"
    order = "name DESC" if query.by == "day" else "total(usd) DESC, total(unpriced) DESC, name"
    groups = f"SELECT {name} AS name, {_SUMS}, {title} {where} GROUP BY name ORDER BY {order} LIMIT ?"
    whole = f"SELECT 'total', {_SUMS}, NULL, count(DISTINCT {name}) {where}"
    most = -1 if query.most is None else query.most
    lines = [_line(*row) for row in db.execute(groups, (*values, most))]
    *sums, number = db.execute(whole, values).fetchone()
    if query.by == "day":
        lines.reverse()
    return Costs(query.by, lines, _line(*sums), number - len(lines))


def _line(
    name: str, usd: float, tokens_in: float, tokens_out: float, sessions: int, unpriced: float, title: str | None
) -> CostLine:
    return CostLine(name, usd, round(tokens_in), round(tokens_out), sessions, round(unpriced), title)


class _Source(NamedTuple):
    """What the costs of a session are counted from."""

    file: File
    record: Summary | None
    former: tuple[File, ...]
    """The transcripts of what it was before it was cleared."""

    @property
    def basis(self) -> str:
        record = self.record
        known = (record.owner, record.revision) if record is not None else None
        return repr((*self.file, known, *self.former))


class _Inputs(NamedTuple):
    """All that costs are counted from, as of one moment. Both mappings are the same objects while nothing changes."""

    files: Mapping[str, File]
    records: Mapping[str, Summary]
    moved: Mapping[str, str]

    def changed_since(self, before: "_Inputs") -> set[str]:
        """The sessions whose costs may be others than they were."""
        names: set[str] = set()
        if self.files is not before.files:
            known = before.files
            names.update(name for name, file in self.files.items() if known.get(name) != file)
            names.update(known.keys() - self.files.keys())
        if self.records is not before.records:
            recorded = before.records
            names.update(name for name, record in self.records.items() if recorded.get(name) is not record)
            names.update(recorded.keys() - self.records.keys())
        if self.moved != before.moved:
            names.update(self.moved.values(), before.moved.values())
        names.update([self.moved[name] for name in names if name in self.moved])
        return names

    def sources(self, names: Iterable[str]) -> dict[str, _Source]:
        """What these sessions are counted from; those without a transcript are left out."""
        former: defaultdict[str, list[File]] = defaultdict(list)
        for old, new in self.moved.items():
            if old in self.files:
                former[new].append(self.files[old])
        return {
            name: _Source(self.files[name], self.records.get(name), tuple(former.get(name, ())))
            for name in names
            if name in self.files
        }


class CostLedger:
    """The costs of all sessions of a catalogue. One thread at a time may call it."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._table = CostTable(catalogue.index)
        self._counted: dict[str, _Source] = {}
        self._version: tuple[int, int] | None = None
        """The version of the index in which every session of `_counted` is as it was counted from there."""
        self._inputs: _Inputs | None = None
        """What every session was last counted from; None if some could not be."""
        self._answers: dict[CostQuery, Costs] = {}
        """Reports on what is counted now."""

    def report(self, records: Mapping[str, Summary], moved: Mapping[str, str], query: CostQuery) -> Costs:
        """`records` are those of all sessions, the same object as long as none has changed; `moved` are the ids of
        sessions that were cleared, with those that they lead to."""
        costs = self._counted_report(records, moved, query)
        if costs is None:
            # Another process keeps the index locked, or its disk is full: all is counted in memory, this once.
            self._table, self._version = CostTable(FileIndex(None)), None
            costs = self._counted_report(records, moved, query)
            self._table, self._version = CostTable(self._catalogue.index), None
        assert costs is not None, "an index in memory can always be used"
        return costs

    def _counted_report(
        self, records: Mapping[str, Summary], moved: Mapping[str, str], query: CostQuery
    ) -> Costs | None:
        for _ in range(2):
            if not self._update(_Inputs(self._catalogue.transcripts(), records, dict(moved))):
                return None
            costs = self._answers.get(query) or self._table.report(query)
            version = self._table.version()
            if version is not None and self._version is not None and version[0] == self._version[0]:
                # Which directory is meant by a path may change with nothing else.
                if costs is not None and query.project is None and len(self._answers) < _MOST_ANSWERS:
                    self._answers[query] = costs
                return costs
            self._version = None  # it was damaged meanwhile and begun anew: all is counted again
        return None

    def _update(self, inputs: "_Inputs") -> bool:
        """Counts what has changed; False if it cannot be noted."""
        version, before = self._table.version(), self._inputs
        if version is None:
            return False
        if version == self._version and before is not None:
            names = inputs.changed_since(before)
            if not names:
                self._inputs = inputs
                return True
            sources = {**self._counted, **inputs.sources(names)}
            gone = self._counted.keys() - inputs.files.keys()
            for name in gone:
                del sources[name]
            stale = [name for name in names if name in sources and self._counted.get(name) != sources[name]]
        else:
            basis, sources = self._table.basis(), inputs.sources(inputs.files)
            if basis is None:
                return False
            stale = [name for name, source in sources.items() if basis.get(name) != source.basis]
            gone = basis.keys() - sources.keys()
        self._answers.clear()
        unread = self._count(sources, stale, gone)
        if unread is None:
            self._version = None
            return False
        for name in unread:
            del sources[name]
        # Those that could not be read are found by their basis, as in a new process, at the next call.
        self._counted, self._version, self._inputs = sources, version, inputs if not unread else None
        return True

    def _count(self, sources: Mapping[str, _Source], stale: list[str], gone: Iterable[str]) -> list[str] | None:
        """Counts sessions again, some hundreds at a time; returns those that could not be read, None if what was
        counted cannot be noted."""
        unread: list[str] = []
        if gone and self._table.put((), gone) is None:
            return None
        for start in range(0, len(stale), _AT_ONCE):
            some = {name: sources[name] for name in stale[start : start + _AT_ONCE]}
            files = {file for source in some.values() for file in (source.file, *source.former)}
            summaries = self._catalogue.summaries(files)
            counted = []
            for name, source in some.items():
                if not all(file in summaries for file in (source.file, *source.former)):
                    unread.append(name)
                    continue
                summary, record = summaries[source.file], source.record
                recorded = {model: [*row] for model, row in record.usage.items()} if record is not None else {}
                former = [summaries[file] for file in source.former]
                spent = spent_session(name, summary, source.file.mtime_ns / 1e9, recorded, former)
                if not summary.is_session:
                    spent = SpentSession(name, "", "", {}, {})
                counted.append(CountedSession(spent, record.owner if record is not None else "", source.basis))
            if self._table.put(counted) is None:
                return None
        return unread
