"""What sessions have cost by day and model, kept in the index and reported.

The dollars are those that Claude Code wrote when its processes ended. For sessions that this product ran, the amount in
their record counts if it is larger: a killed process writes nothing, and a session can remove what it has written. The
transcript of a caller other than the local user is written only by that caller's sessions: there the transcript
determines the days of the costs, and the record the amount. Usage without a price is counted in tokens only. All of
this is for people to read: limits are enforced with the server's own counts, elsewhere.

`CostTable` is the tables: the stored data of each session, and the sums. `CostLedger` keeps them up to date: it counts
a session again only when its transcript or its record has changed, so that a report does not reread unchanged
transcripts. A session's `basis`, stored with its costs, names the data that they were counted from. Sessions are
compared by it when a process makes its first report, and whenever another process has written to the index. A
transcript that cannot be read now keeps its previous costs and is counted at the next call. All functions block on the
disk.
"""

import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..model.caller import LOCAL
from ..state.session_records import Summary
from .index import File, FileIndex, storable
from .session_catalog import Catalog, normalized
from .transcript_summary import NO_DAY, Row, TranscriptSummary

if TYPE_CHECKING:
    import sqlite3


_NOTHING: Row = [0.0] * 5
_MAX_AMOUNT = 1e15
"""Any program can write transcripts: a single one must not make the total infinite."""
Grouping = Literal["session", "project", "model", "day", "month"]
Split = Literal["model", "project"]


@dataclass(frozen=True, slots=True)
class SpentSession:
    """The cost data of one session."""

    session_id: str
    title: str
    project: str
    usage: Mapping[str, Row]
    """By day and model, joined by a space."""
    unpriced: Mapping[str, Row]


class DailyCost(NamedTuple):
    """The cost of one session on one day with one model."""

    session_id: str
    day: str
    model: str
    usd: float
    input_tokens: float
    output_tokens: float
    unpriced_tokens: float


@dataclass(slots=True)
class CostLine:
    """The costs of one group."""

    name: str
    usd: float = 0.0
    input_tokens: int = 0
    """Including cache reads and writes."""
    output_tokens: int = 0
    sessions: int = 0
    unpriced_tokens: int = 0
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of sessions, by group and in total."""

    by: Grouping
    lines: list[CostLine]
    """Days and months in order, other groups by cost, highest first."""
    total: CostLine
    left_out: int = 0
    """The number of omitted groups: earlier days, or cheaper groups."""
    parts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The dollars of each group by model or project, if the query asks for a split."""


def spent_session(
    session_id: str,
    summary: TranscriptSummary,
    last_used: float,
    recorded: Mapping[str, Row],
    former: Iterable[TranscriptSummary] = (),
) -> SpentSession:
    """`recorded` is the usage by model in the session's record, for it and the conversations before it was cleared
    (`former`). If it exceeds the transcripts, the difference counts on the day of last use."""
    unpriced = {} if recorded else summary.pending
    known = _by_model((summary, *former))
    return _spent(session_id, summary, dict(summary.usage), _missing(recorded, known), last_used, unpriced)


def recorded_session(
    session_id: str, summary: TranscriptSummary, last_used: float, recorded: Mapping[str, Row]
) -> SpentSession:
    """A session that cost exactly the recorded amount, on the days given by its transcript."""
    known, usage = _by_model((summary,)), {}
    for key, row in summary.usage.items():
        limits = zip(row, known[key[11:]], recorded.get(key[11:], _NOTHING), strict=True)
        usage[key] = [part * min(1.0, most / whole) if whole else 0.0 for part, whole, most in limits]
    kept = {model: [*map(min, row, recorded.get(model, _NOTHING))] for model, row in known.items()}
    return _spent(session_id, summary, usage, _missing(recorded, kept), last_used, {})


def _spent(
    session_id: str,
    summary: TranscriptSummary,
    usage: dict[str, Row],
    missing: Mapping[str, Row],
    last_used: float,
    unpriced: Mapping[str, Row],
) -> SpentSession:
    day = datetime.fromtimestamp(min(max(last_used, 0), 1e11), UTC).date().isoformat()
    for model, more in missing.items():
        usage[f"{day} {model}"] = _sum(usage.get(f"{day} {model}", _NOTHING), more)
    return SpentSession(session_id, summary.title or summary.first_prompt or "", summary.cwd or "", usage, unpriced)


def _missing(recorded: Mapping[str, Row], known: Mapping[str, Row]) -> dict[str, Row]:
    """The recorded usage of models beyond the usage known otherwise."""
    missing = {}
    for model, row in recorded.items():
        counted = known.get(model, _NOTHING)
        # Both are sums of the same amounts in different orders, so their last digits may differ.
        if row[4] > counted[4] * (1 + 1e-9):
            missing[model] = [max(0.0, new - old) for new, old in zip(row, counted, strict=True)]
    return missing


def _by_model(summaries: Iterable[TranscriptSummary]) -> dict[str, Row]:
    total: dict[str, Row] = {}
    for summary in summaries:
        for key, row in summary.usage.items():
            total[key[11:]] = _sum(total.get(key[11:], _NOTHING), row)
    return total


def _sum(left: Row, right: Row) -> Row:
    return [a + b for a, b in zip(left, right, strict=True)]


def daily_costs(session: SpentSession) -> Iterator[DailyCost]:
    """One entry for each day and model that the session used."""
    for key in {**session.usage, **session.unpriced}:
        used, unpriced = session.usage.get(key, _NOTHING), session.unpriced.get(key, _NOTHING)
        yield DailyCost(
            session.session_id,
            key[:10],
            key[11:],
            _amount(used[4]),
            round(_amount(used[0] + used[2] + used[3])),
            round(_amount(used[1])),
            round(_amount(sum(unpriced[:4]))),
        )


def _amount(value: float) -> float:
    return 0.0 if math.isnan(value) else min(max(value, 0.0), _MAX_AMOUNT)


_AT_ONCE = 200
"""Sessions per transaction."""
_MAX_ANSWERS = 64
_NAMES: Mapping[Grouping, str] = {
    "session": "session_id",
    "project": "project",
    "model": "model",
    "day": f"CASE day WHEN '{NO_DAY}' THEN 'unknown' ELSE day END",
    "month": f"CASE day WHEN '{NO_DAY}' THEN 'unknown' ELSE substr(day, 1, 7) END",
}
_BY_TIME = ("day", "month")
_SUMS = "total(usd), total(input), total(output), count(DISTINCT session_id), total(unpriced)"


@dataclass(frozen=True, slots=True)
class CostQuery:
    """Which costs to report, and how to group them."""

    by: Grouping
    since: str = ""
    """The first day, such as `2026-11-01`."""
    owner: str | None = None
    """None for sessions of all callers."""
    project: str | None = None
    """A directory in any spelling; with an owner, only names are compared."""
    most: int | None = None
    """Maximum number of groups: the latest days, or the most expensive others."""
    without: frozenset[str] = frozenset()
    """Sessions to exclude."""
    split: Split | None = None
    """How to divide each group."""


class CountedSession(NamedTuple):
    """A session with its costs, its owner, and the data they were counted from."""

    spent: SpentSession
    owner: str
    basis: str


class CostTable:
    """The costs in one index. Every method returns None if the index cannot be used now."""

    def __init__(self, index: FileIndex) -> None:
        self._index = index

    def version(self) -> tuple[int, int] | None:
        """Changes whenever another process writes to the index or the index is recreated."""
        found = self._index.run(lambda db: int(db.execute("PRAGMA data_version").fetchone()[0]))
        return None if found is None else (self._index.generation, found)

    def basis(self) -> dict[str, str] | None:
        """The data from which each session's costs were counted, by id."""
        return self._index.run(lambda db: dict(db.execute("SELECT session_id, basis FROM spent_sessions")))

    def put(self, sessions: Iterable[CountedSession], gone: Iterable[str] = ()) -> bool | None:
        """Replaces the data of these sessions and removes sessions that are gone, all or nothing."""
        sessions, gone = [*sessions], [*gone]

        def work(db: "sqlite3.Connection") -> bool:
            ids = [(session_id,) for session_id in (*(counted.spent.session_id for counted in sessions), *gone)]
            db.executemany("DELETE FROM costs WHERE session_id = ?", ids)
            db.executemany("DELETE FROM spent_sessions WHERE session_id = ?", ids)
            for spent, owner, basis in sessions:
                values = (spent.session_id, basis, owner, storable(spent.project), storable(spent.title))
                db.execute("INSERT INTO spent_sessions VALUES (?, ?, ?, ?, ?)", values)
                # Names of models are merged if they differ only in parts that no database accepts.
                rows = ((row[0], row[1], storable(row[2]), *row[3:]) for row in daily_costs(spent))
                db.executemany("INSERT OR REPLACE INTO costs VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            return True

        return self._index.run(work)

    def report(self, query: CostQuery) -> Costs | None:
        """The totals, from the tables only."""
        projects = None
        if query.project is not None:
            # The sessions of an owner could have written any directory, and must not learn which ones exist.
            place: Callable[[str], str] = os.path.realpath if query.owner is None else normalized
            wanted = place(query.project)
            known = self._index.run(lambda db: db.execute("SELECT DISTINCT project FROM spent_sessions").fetchall())
            projects = [project for (project,) in known or () if place(project) == wanted]
        return self._index.run(lambda db: _report(db, query, projects))


def _report(db: "sqlite3.Connection", query: CostQuery, projects: list[str] | None) -> Costs:
    db.execute("BEGIN")  # lines and total are from the same moment
    if projects is not None:
        db.execute("CREATE TEMP TABLE IF NOT EXISTS wanted_projects (project TEXT PRIMARY KEY)")
        db.execute("DELETE FROM wanted_projects")
        db.executemany("INSERT INTO wanted_projects VALUES (?)", [(project,) for project in projects])
    conditions, values = ["day >= ?"], [query.since]
    if query.without:
        db.execute("CREATE TEMP TABLE IF NOT EXISTS uncounted (session_id TEXT PRIMARY KEY)")
        db.execute("DELETE FROM uncounted")
        db.executemany("INSERT INTO uncounted VALUES (?)", [(session_id,) for session_id in query.without])
        conditions.append("session_id NOT IN (SELECT session_id FROM uncounted)")
    if query.owner is not None:
        conditions.append("owner = ?")
        values.append(query.owner)
    if projects is not None:
        conditions.append("project IN (SELECT project FROM wanted_projects)")
    joined = len(conditions) > 1 or query.by in ("session", "project") or query.split == "project"
    source = "costs JOIN spent_sessions USING (session_id)" if joined else "costs"
    where = f"FROM {source} WHERE {' AND '.join(conditions)}"
    name, title = _NAMES[query.by], "max(title)" if query.by == "session" else "NULL"
    order = "name DESC" if query.by in _BY_TIME else "total(usd) DESC, total(unpriced) DESC, name"
    groups = f"SELECT {name} AS name, {_SUMS}, {title} {where} GROUP BY name ORDER BY {order} LIMIT ?"
    whole = f"SELECT 'total', {_SUMS}, NULL, count(DISTINCT {name}) {where}"
    most = -1 if query.most is None else query.most
    lines = [_line(*row) for row in db.execute(groups, (*values, most))]
    *sums, number = db.execute(whole, values).fetchone()
    if query.by in _BY_TIME:
        lines.reverse()
    parts: dict[str, dict[str, float]] = {line.name: {} for line in lines} if query.split else {}
    if query.split is not None:
        split = f"SELECT {name}, {_NAMES[query.split]}, total(usd) AS spent {where} GROUP BY 1, 2 HAVING spent > 0"
        for group, part, spent in db.execute(split, values):
            if group in parts:
                parts[group][part] = spent
    return Costs(query.by, lines, _line(*sums), number - len(lines), parts)


def added_up(by: Grouping, reports: Iterable[Costs], most: int | None) -> Costs:
    """Merges complete reports on different sessions into one with a maximum number of groups."""
    sums: dict[str, CostLine] = {}
    parts: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    total = CostLine("total")
    for report in reports:
        for line in report.lines:
            _add(sums.setdefault(line.name, CostLine(line.name)), line)
        for name, split in report.parts.items():
            for part, spent in split.items():
                parts[name][part] += spent
        _add(total, report.total)
    cheapest_last = sorted(sums.values(), key=lambda line: (-line.usd, -line.unpriced_tokens, line.name))
    newest_last = sorted(sums.values(), key=lambda line: line.name)
    kept = len(sums) if most is None else min(most, len(sums))
    lines = newest_last[len(sums) - kept :] if by in _BY_TIME else cheapest_last[:kept]
    return Costs(by, lines, total, len(sums) - kept, {line.name: parts[line.name] for line in lines if parts})


def _add(line: CostLine, more: CostLine) -> None:
    line.usd += more.usd
    line.input_tokens += more.input_tokens
    line.output_tokens += more.output_tokens
    line.sessions += more.sessions
    line.unpriced_tokens += more.unpriced_tokens


def _line(
    name: str, usd: float, tokens_in: float, tokens_out: float, sessions: int, unpriced: float, title: str | None
) -> CostLine:
    return CostLine(name, usd, round(tokens_in), round(tokens_out), sessions, round(unpriced), title)


class _Source(NamedTuple):
    """The data from which a session's costs are counted."""

    file: File | None
    """None if it has no transcript, or no longer has one."""
    record: Summary | None
    former: tuple[File, ...]
    """The transcripts of the conversations before it was cleared."""

    @property
    def files(self) -> tuple[File, ...]:
        return self.former if self.file is None else (self.file, *self.former)

    @property
    def basis(self) -> str:
        record = self.record
        known = (record.owner, record.revision) if record is not None else None
        return repr((*(self.file or ()), known, *self.former))


class _Inputs(NamedTuple):
    """All data that costs are counted from, at one moment. Both mappings are the same objects while nothing changes."""

    files: Mapping[str, File]
    records: Mapping[str, Summary]
    moved: Mapping[str, str]
    config_dir: str

    def changed_since(self, before: "_Inputs") -> set[str]:
        """The sessions whose costs may have changed."""
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
            names.update(self.moved.values(), before.moved.values(), self.moved, before.moved)
        names.update([self.moved[name] for name in names if name in self.moved])
        names.update([old for old, new in self.moved.items() if new in names])
        return names

    def sources(self, names: Iterable[str]) -> dict[str, _Source]:
        """The sources of these sessions. Omits sessions with neither a transcript nor a recorded cost, and sessions
        whose record counts as part of the session they were cleared to."""
        former: defaultdict[str, list[File]] = defaultdict(list)
        for old, new in self.moved.items():
            if old in self.files:
                former[new].append(self.files[old])
        found = {}
        for name in names:
            record, successor = self.records.get(name), self.moved.get(name, name)
            recorded_here = record is not None and bool(record.usage) and record.config_dir == self.config_dir
            is_part = successor != name and _is_binding(self.records.get(successor))
            if (name in self.files or recorded_here) and not is_part:
                found[name] = _Source(self.files.get(name), record, tuple(former.get(name, ())))
        return found


def _is_binding(record: Summary | None) -> bool:
    """Whether a record has the session's complete cost. A session of the local user may also continue in a terminal,
    which only the transcript shows."""
    return record is not None and record.owner != LOCAL


class CostLedger:
    """The costs of all sessions in a catalog. Only one thread at a time may call it."""

    def __init__(self, catalog: Catalog, config_dir: str = "") -> None:
        """`config_dir` is the location of the catalog's transcripts, as records name it."""
        self._catalog = catalog
        self._config_dir = config_dir
        self._table = CostTable(catalog.index)
        self._counted: dict[str, _Source] = {}
        self._version: tuple[int, int] | None = None
        """The version of the index in which all sessions of `_counted` are counted."""
        self._inputs: _Inputs | None = None
        """The data of the last count; None if some sessions could not be counted."""
        self._answers: dict[CostQuery, Costs] = {}
        """Reports on the current counts."""

    def report(self, records: Mapping[str, Summary], moved: Mapping[str, str], query: CostQuery) -> Costs:
        """`records` are the records of all sessions, the same object while none changes; `moved` maps ids of cleared
        sessions to their successors."""
        costs = self._counted_report(records, moved, query)
        if costs is None:
            # Another process keeps the index locked, or its disk is full: count everything in memory this time.
            self._table, self._version = CostTable(FileIndex(None)), None
            costs = self._counted_report(records, moved, query)
            self._table, self._version = CostTable(self._catalog.index), None
        assert costs is not None, "an index in memory can always be used"
        return costs

    def _counted_report(
        self, records: Mapping[str, Summary], moved: Mapping[str, str], query: CostQuery
    ) -> Costs | None:
        for _ in range(2):
            if not self._update(_Inputs(self._catalog.transcripts(), records, dict(moved), self._config_dir)):
                return None
            costs = self._answers.get(query) or self._table.report(query)
            version = self._table.version()
            if version is not None and self._version is not None and version[0] == self._version[0]:
                # The directory that a path refers to may change without any other change.
                if costs is not None and query.project is None and len(self._answers) < _MAX_ANSWERS:
                    self._answers[query] = costs
                return costs
            self._version = None  # it was damaged and has been recreated: count everything again
        return None

    def _update(self, inputs: "_Inputs") -> bool:
        """Counts the changed sessions again; False if the result cannot be stored."""
        # Read first: a write of another process during the count gives the next call a different version. Our own
        # writes do not change it.
        version, before = self._table.version(), self._inputs
        if version is None:
            return False
        if version == self._version and before is not None:
            names = inputs.changed_since(before)
            if not names:
                self._inputs = inputs
                return True
            found = inputs.sources(names)
            sources = {**self._counted, **found}
            gone = {name for name in names if name in self._counted and name not in found}
            for name in gone:
                del sources[name]
            stale = [name for name in names if name in sources and self._counted.get(name) != sources[name]]
        else:
            basis, sources = self._table.basis(), inputs.sources({*inputs.files, *inputs.records})
            if basis is None:
                return False
            stale = [name for name, source in sources.items() if basis.get(name) != source.basis]
            gone = basis.keys() - sources.keys()
        # Before the count: if that fails half way, the tables have changed nevertheless.
        self._answers.clear()
        unread = self._count(sources, stale, gone)
        if unread is None:
            self._version = None
            return False
        for name in unread:
            del sources[name]
        # The next call finds the unreadable ones by their basis, as in a new process.
        self._counted, self._version, self._inputs = sources, version, inputs if not unread else None
        return True

    def _count(self, sources: Mapping[str, _Source], stale: list[str], gone: Iterable[str]) -> list[str] | None:
        """Counts sessions again, a few hundred at a time. Returns those that could not be read, or None if counts
        cannot be stored."""
        unread: list[str] = []
        if gone and self._table.put((), gone) is None:
            return None
        for start in range(0, len(stale), _AT_ONCE):
            some = {name: sources[name] for name in stale[start : start + _AT_ONCE]}
            files = {file for source in some.values() for file in source.files}
            summaries = self._catalog.summaries(files)
            counted = []
            for name, source in some.items():
                if not all(file in summaries for file in source.files):
                    unread.append(name)
                    continue
                owner = source.record.owner if source.record is not None else ""
                counted.append(CountedSession(_counted(name, source, summaries), owner, source.basis))
            if self._table.put(counted) is None:
                return None
        return unread


def _counted(name: str, source: _Source, summaries: Mapping[File, TranscriptSummary]) -> SpentSession:
    summary, last_used = TranscriptSummary(""), time.time()
    if source.file is not None:
        found, last_used = summaries[source.file], source.file.mtime_ns / 1e9
        summary = found if found.is_session else summary
    recorded = {model: [*row] for model, row in source.record.usage.items()} if source.record is not None else {}
    if _is_binding(source.record):
        return recorded_session(name, summary, last_used, recorded)
    return spent_session(name, summary, last_used, recorded, [summaries[file] for file in source.former])
