"""What callers spend per day is kept: over restarts, between servers, through a crash in mid-line."""

import os
import stat
from pathlib import Path

from claude_code_mcp.store.spending import Spending

NOON = 1_790_000_000.0
DAY = 86_400.0


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


def spend(spending: Spending, who: str, usd: float) -> None:
    spending.note(who, usd)
    spending.write(who, usd)


def test_amounts_add_up_by_caller(tmp_path: Path) -> None:
    spending = Spending(tmp_path, Clock())
    spend(spending, "alice", 1.5)
    spend(spending, "alice", 0.5)
    spend(spending, "bob", 4)
    spending.refresh()
    assert (spending.today("alice"), spending.today("bob"), spending.today("carol")) == (2.0, 4.0, 0.0)


def test_another_server_and_the_next_one_know(tmp_path: Path) -> None:
    clock = Clock()
    one, two = Spending(tmp_path, clock), Spending(tmp_path, clock)
    spend(one, "alice", 1)
    two.refresh()
    spend(two, "alice", 2)
    one.refresh()
    one.refresh()
    later = Spending(tmp_path, clock)
    later.refresh()
    assert one.today("alice") == two.today("alice") == later.today("alice") == 3


def test_a_new_day_begins_with_nothing(tmp_path: Path) -> None:
    clock = Clock()
    spending = Spending(tmp_path, clock)
    spend(spending, "alice", 1)
    clock.now += DAY
    spending.refresh()
    assert spending.today("alice") == 0
    spend(spending, "alice", 2)
    spending.refresh()
    assert spending.today("alice") == 2


def test_a_line_that_a_crash_cut_off_spoils_no_other(tmp_path: Path) -> None:
    clock = Clock()
    spend(Spending(tmp_path, clock), "alice", 1)
    (file,) = (tmp_path / "spending").iterdir()
    with file.open("ab") as torn:
        torn.write(b'\n{"who": "alice", "us')
    spend(Spending(tmp_path, clock), "alice", 2)
    with file.open("ab") as odd:
        odd.write(b'\n[]\n{"who": "alice", "usd": -5, "by": "x"}\n{"who": "alice", "usd": "NaN", "by": "x"}\n')
    after = Spending(tmp_path, clock)
    after.refresh()
    assert after.today("alice") == 3


def test_only_the_owner_may_read_it_and_old_days_go(tmp_path: Path) -> None:
    clock = Clock()
    for _ in range(40):
        spend(Spending(tmp_path, clock), "alice", 1)
        clock.now += DAY
    files = list((tmp_path / "spending").iterdir())
    assert len(files) <= 32
    assert {stat.S_IMODE(os.stat(file).st_mode) for file in files} == {0o600}
