"""What callers spend per day is kept: over restarts, between servers, through a crash in mid-line."""

import os
import stat
import subprocess
import sys
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


def half(left: float) -> float:
    return left / 2


def everything(left: float) -> float:
    return left


def test_what_is_reserved_cannot_be_had_by_another_session_or_server(tmp_path: Path) -> None:
    clock = Clock()
    one, two = Spending(tmp_path, clock), Spending(tmp_path, clock)
    assert one.reserve("alice", "a", 10, half) == 5
    assert two.reserve("alice", "b", 10, half) == 2.5
    assert two.reserve("bob", "c", 10, everything) == 10
    assert one.reserve("alice", "d", 10, everything) == 2.5
    assert two.reserve("alice", "e", 10, everything) == 0


def test_a_reservation_becomes_smaller_as_its_session_spends(tmp_path: Path) -> None:
    clock = Clock()
    one, two = Spending(tmp_path, clock), Spending(tmp_path, clock)
    one.reserve("alice", "a", 10, half)
    one.note("alice", 3, "a")
    one.write("alice", 3, "a")
    assert (one.today("alice"), one.reserved("a")) == (3, 2)
    assert two.reserve("alice", "b", 10, everything) == 5
    assert one.release("a")
    one.write("alice", 0, "a")
    assert not one.release("a")
    assert two.reserve("alice", "b", 10, everything) == 7


def test_a_session_reserves_anew_in_place_of_what_it_had(tmp_path: Path) -> None:
    spending = Spending(tmp_path, Clock())
    assert spending.reserve("alice", "a", 10, everything) == 10
    assert spending.moved("a", "b") == "alice"
    assert spending.reserved("a") is None
    assert spending.moved("a", "c") is None
    assert spending.reserve("alice", "b", 10, half) == 5


def test_the_reservations_of_a_server_that_died_count_no_more(tmp_path: Path) -> None:
    code = (
        "import sys, os, pathlib\n"
        "from claude_code_mcp.store.spending import Spending\n"
        "spending = Spending(pathlib.Path(sys.argv[1]), lambda: float(sys.argv[2]))\n"
        "print(spending.reserve('alice', 'a', 10, lambda left: left), flush=True)\n"
        "sys.stdin.read()\n"
        "os._exit(9)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), str(NOON)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "10.0\n"
        here = Spending(tmp_path, Clock())
        assert here.reserve("alice", "b", 10, everything) == 0
        other.communicate()
    assert here.reserve("alice", "b", 10, everything) == 10
