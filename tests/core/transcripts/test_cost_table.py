"""What sessions cost is kept by session and day: counted again only where something has changed, whoever asks."""

import contextlib
import random
import sqlite3
from dataclasses import replace
from typing import Any

import pytest

from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.state.session_records import Summary
from claude_code_mcp.core.transcripts import session_catalog as catalog_module
from claude_code_mcp.core.transcripts.cost_table import CostLedger, CostQuery, Costs, added_up
from claude_code_mcp.core.transcripts.session_catalog import Catalog
from claude_code_mcp.core.transcripts.transcript_summary import load

from .catalog_disk import Disk, lines, user
from .test_cost_report import answer, costs
from .test_index import Readings, index_file, kept

Records = dict[str, Summary]
NOTHING: Records = {}


class Parsings:
    """How often the facts of a transcript were taken from the index."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = 0
        self._load = load
        monkeypatch.setattr(catalog_module, "load", self._count)

    def _count(self, text: str) -> object:
        self.number += bool(text)
        return self._load(text)


def spend(disk: Disk, dollars: float, *, day: int = 1, session_id: str | None = None, **more: Any) -> str:
    """A session that cost so much."""
    where = str(more.pop("cwd", disk.project))
    content = lines(user("hello", cwd=where), answer(1, day, 10), costs(dollars, since=day), *more.pop("behind", ()))
    return disk.write(content, cwd=where, session_id=session_id)


def record(dollars: float, *, owner: str = "local", revision: int = 1, model: str = "opus") -> Summary:
    return Summary(owner, False, False, State.IDLE, {model: [0, 9, 0, 0, dollars]}, revision)


def usd(found: Costs) -> dict[str, float]:
    return {line.name: round(line.usd, 9) for line in found.lines}


def by_session(ledger: CostLedger, records: Records = NOTHING, moved: dict[str, str] | None = None) -> dict[str, float]:
    return usd(ledger.report(records, moved or {}, CostQuery("session")))


def test_a_second_report_reads_and_parses_nothing(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {spend(disk, number): float(number) for number in range(1, 6)}
    ledger = CostLedger(kept(disk))
    assert by_session(ledger) == made
    readings, parsings = Readings(monkeypatch), Parsings(monkeypatch)
    assert by_session(ledger) == made
    for by in ("day", "model", "project"):
        assert ledger.report(NOTHING, {}, CostQuery(by)).total.usd == pytest.approx(15)
    assert by_session(CostLedger(kept(disk))) == made  # a new process
    assert (readings.offsets, parsings.number) == ([], 0)


def test_only_what_has_changed_is_counted_again(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = (spend(disk, number) for number in (1, 2, 3))
    old, ledger = CostLedger(kept(disk)), CostLedger(kept(disk))
    assert len(by_session(old)) == len(by_session(ledger)) == 3
    size = disk.path_of(second).stat().st_size
    readings, parsings = Readings(monkeypatch), Parsings(monkeypatch)
    with disk.path_of(second).open("ab") as file:
        file.write(lines(answer(2, 5, 10), costs(2.5, since=5)))
    disk.path_of(third).unlink()
    expected = {second: 2.5, first: 1.0}
    assert by_session(ledger) == expected
    assert readings.offsets == [size]
    assert parsings.number <= 2  # what was known of it before, and what is known now
    assert by_session(old) == by_session(CostLedger(kept(disk))) == expected  # what another has counted is taken over
    assert readings.offsets == [size]
    assert usd(ledger.report(NOTHING, {}, CostQuery("day"))) == {"2026-11-01": 3.0, "2026-11-05": 0.5}
    assert usd(ledger.report(NOTHING, {}, CostQuery("day", since="2026-11-02"))) == {"2026-11-05": 0.5}


def test_a_record_counts_where_it_has_more_and_says_whose_a_session_is(disk: Disk) -> None:
    mine, hers = spend(disk, 1.0), spend(disk, 2.0)
    ledger = CostLedger(kept(disk))
    records = {mine: record(1.5), hers: record(2.0, owner="alice")}
    assert by_session(ledger, records) == {hers: 2.0, mine: 1.5}
    assert usd(ledger.report(records, {}, CostQuery("session", owner="alice"))) == {hers: 2.0}
    assert ledger.report(records, {}, CostQuery("day", owner="bob")).lines == []
    later = {**records, mine: record(4.0, revision=2)}
    assert by_session(ledger, later) == {mine: 4.0, hers: 2.0}
    assert by_session(CostLedger(kept(disk)), later) == {mine: 4.0, hers: 2.0}
    assert by_session(ledger, NOTHING) == {hers: 2.0, mine: 1.0}  # a record that is gone


def test_costs_before_a_clear_are_not_counted_twice(disk: Disk) -> None:
    before, now = spend(disk, 1.0), spend(disk, 2.0)
    ledger, records = CostLedger(kept(disk)), {now: record(3.5)}
    assert by_session(ledger, records) == {now: 3.5, before: 1.0}
    assert by_session(ledger, records, {before: now}) == {now: 2.5, before: 1.0}
    assert by_session(CostLedger(kept(disk)), records, {before: now}) == {now: 2.5, before: 1.0}


def test_the_number_of_groups_is_bounded_and_what_is_left_out_is_reported(disk: Disk) -> None:
    made = [spend(disk, number, day=number) for number in range(1, 8)]
    ledger = CostLedger(kept(disk))
    found = ledger.report(NOTHING, {}, CostQuery("session", most=2))
    assert ([line.name for line in found.lines], found.left_out) == ([made[6], made[5]], 5)
    days = ledger.report(NOTHING, {}, CostQuery("day", most=3))
    assert ([line.name for line in days.lines], days.left_out) == (["2026-11-05", "2026-11-06", "2026-11-07"], 4)
    assert found.total == days.total
    assert (days.total.sessions, days.total.usd) == (7, 28.0)
    assert found.lines[0].title == "hello"


def test_a_project_is_the_same_in_every_spelling(disk: Disk) -> None:
    here, there = spend(disk, 1.0), spend(disk, 2.0, cwd="/gone/elsewhere")
    link = disk.project.parent / "link"
    link.symlink_to(disk.project)
    ledger = CostLedger(kept(disk))
    assert usd(ledger.report(NOTHING, {}, CostQuery("session", project=str(link)))) == {here: 1.0}
    assert usd(ledger.report(NOTHING, {}, CostQuery("session", project="/gone/elsewhere/"))) == {there: 2.0}
    assert ledger.report(NOTHING, {}, CostQuery("day", project="/gone")).total.sessions == 0


def test_impossible_amounts_and_names_are_handled(disk: Disk) -> None:
    good = spend(disk, 1.0)
    usage = {"\ud800": {"outputTokens": 10**400, "costUSD": 1e308}, "x" * 5000: {"costUSD": 1e308, "inputTokens": -5}}
    evil = {"type": "cost-state", "startTime": 1e300, "modelUsage": usage}
    for _ in range(20):
        spend(disk, 1e308, behind=(evil, {**evil, "modelUsage": {"a b c": {"costUSD": float("1e999")}}}))
    ledger = CostLedger(kept(disk))
    for by in ("session", "project", "model", "day"):
        found = ledger.report(NOTHING, {}, CostQuery(by))
        assert 0 < found.total.usd < 1e300
        assert all(0 <= line.usd < 1e300 for line in found.lines)
    assert by_session(ledger)[good] == 1.0


def test_an_index_that_is_damaged_locked_or_gone_changes_no_answer(disk: Disk) -> None:
    made = {spend(disk, 2.0): 2.0, spend(disk, 1.0): 1.0}
    ledger = CostLedger(kept(disk))
    assert by_session(ledger) == made
    index_file(disk).write_bytes(b"\xff" * 40_000)
    assert by_session(ledger) == made
    for path in index_file(disk).parent.iterdir():
        path.unlink()
    assert by_session(ledger) == by_session(CostLedger(kept(disk))) == made
    made[spend(disk, 0.5)] = 0.5
    with contextlib.closing(sqlite3.connect(index_file(disk), isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert by_session(CostLedger(kept(disk))) == made
        other.execute("ROLLBACK")
    assert by_session(ledger) == made


def test_a_transcript_that_cannot_be_read_keeps_its_costs_until_it_can(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = spend(disk, 1.0)
    catalog = kept(disk)
    ledger = CostLedger(catalog)
    assert by_session(ledger) == {session_id: 1.0}
    with disk.path_of(session_id).open("ab") as file:
        file.write(lines(costs(3.0)))

    def refuse(*_: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as broken:
        broken.setattr(catalog_module, "summarize", refuse)
        new = spend(disk, 7.0)
        assert by_session(ledger) == {session_id: 1.0}
        assert "2 transcripts" in (catalog.unread() or "")
    assert by_session(ledger) == {new: 7.0, session_id: 3.0}
    assert catalog.unread() is None


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 4))])
def test_stored_costs_equal_recounted_costs_after_any_change(disk: Disk, seed: int) -> None:
    """Two servers on one index, and one that keeps nothing, through a hundred random changes."""
    chance = random.Random(seed)
    servers = [CostLedger(kept(disk)), CostLedger(kept(disk))]
    records: Records = {}
    moved: dict[str, str] = {}
    made: list[str] = []
    for _ in range(100):
        action = chance.choice(["new", "new", "grow", "remove", "record", "drop", "move"])
        known = chance.choice(made) if made else None
        if action == "new" or known is None:
            made.append(spend(disk, chance.randrange(1, 9), day=chance.randrange(1, 9)))
        elif action == "grow" and disk_has(disk, known):
            with disk.path_of(known).open("ab") as file:
                file.write(lines(costs(chance.randrange(9, 20))))
        elif action == "remove" and disk_has(disk, known):
            disk.path_of(known).unlink()
        elif action == "record":
            before = records.get(known)
            changed = record(chance.randrange(1, 30), owner=chance.choice(["local", "alice"]))
            records = {**records, known: replace(changed, revision=before.revision + 1 if before else 1)}
        elif action == "drop":
            records = {name: kept_record for name, kept_record in records.items() if name != known}
        elif action == "move":
            moved = {**moved, known: chance.choice(made)}
        query = CostQuery(chance.choice(["session", "project", "model", "day"]), owner=chance.choice([None, "alice"]))
        fresh = CostLedger(Catalog(str(disk.config))).report(records, moved, query)
        found = chance.choice(servers).report(records, moved, query)
        assert usd(found) == pytest.approx(usd(fresh))
        assert (found.total.sessions, found.total.unpriced_tokens) == (
            fresh.total.sessions,
            fresh.total.unpriced_tokens,
        )


def test_days_are_split_by_model_and_by_project_and_the_parts_of_many_reports_are_added_up(disk: Disk) -> None:
    other = disk.project.parent / "other"
    behind = [answer(2, 1, 10, "haiku"), costs(0.25, model="haiku")]
    spend(disk, 1.0, behind=behind)
    spend(disk, 2.0, cwd=str(other))
    spend(disk, 4.0, day=3)
    ledger = CostLedger(kept(disk))
    by_model, by_project = (
        ledger.report(NOTHING, {}, CostQuery("day", most=2, split=split)) for split in ("model", "project")
    )
    assert by_model.parts == {"2026-11-01": {"opus": 3.0, "haiku": 0.25}, "2026-11-03": {"opus": 4.0}}
    here = str(disk.project)
    assert by_project.parts == {"2026-11-01": {here: 1.25, str(other): 2.0}, "2026-11-03": {here: 4.0}}
    assert ledger.report(NOTHING, {}, CostQuery("day", most=1, split="model")).parts == {"2026-11-03": {"opus": 4.0}}
    assert ledger.report(NOTHING, {}, CostQuery("day")).parts == {}
    assert added_up("day", [by_model, by_model], 1).parts == {"2026-11-03": {"opus": 8.0}}


def disk_has(disk: Disk, session_id: str) -> bool:
    return any(disk.config.glob(f"projects/*/{session_id}.jsonl"))


@pytest.mark.parametrize("damage", ["removed", "emptied", "of a subagent", "shadowed"])
@pytest.mark.parametrize("owner", ["local", "alice"])
def test_recorded_costs_count_without_a_transcript(disk: Disk, damage: str, owner: str) -> None:
    session_id = spend(disk, 2.0)
    records = {session_id: record(2.0, owner=owner)}
    ledger = CostLedger(kept(disk))
    assert by_session(ledger, records) == {session_id: 2.0}
    path, foreign = disk.path_of(session_id), lines({**user("x"), "isSidechain": True})
    if damage == "removed":
        path.unlink()
    elif damage == "shadowed":
        disk.write(foreign, cwd="/elsewhere", session_id=session_id)
    else:
        path.write_bytes(foreign if damage == "of a subagent" else b"")
    for each in (ledger, CostLedger(kept(disk)), CostLedger(disk.catalog)):
        assert by_session(each, records) == {session_id: 2.0}
    assert by_session(ledger, {}) == {}


def test_a_caller_s_transcript_says_when_something_was_spent_and_the_record_how_much(disk: Disk) -> None:
    session_id = spend(disk, 2.0, behind=(answer(2, 3, 10), costs(1_000_000.0, since=3)))
    cleared = spend(disk, 500.0)
    records = {session_id: record(4.0, owner="alice")}
    ledger = CostLedger(kept(disk))
    days = usd(ledger.report(records, {cleared: session_id}, CostQuery("day")))
    assert sum(days.values()) == pytest.approx(4.0)
    assert set(days) == {"2026-11-01", "2026-11-03"}
    assert by_session(ledger, records, {cleared: session_id}) == {session_id: 4.0}
    assert ledger.report(records, {cleared: session_id}, CostQuery("model")).total.output_tokens <= 9


def test_a_record_of_another_directory_counts_there_alone(disk: Disk) -> None:
    elsewhere = replace(record(3.0), config_dir="/elsewhere")
    assert by_session(CostLedger(kept(disk)), {"of-another": elsewhere}) == {}
    assert by_session(CostLedger(disk.catalog, "/elsewhere"), {"of-another": elsewhere}) == {"of-another": 3.0}
