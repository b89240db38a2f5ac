"""A budget of which little is left warns once, whoever spends, however many servers there are, and after a restart."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from claude_code_mcp.core.state.database import Database
from claude_code_mcp.core.state.spending import Budget, BudgetWarning, Spending

from .test_spending import DAY, NOON, Clock

ROOT = Path(__file__).parents[3]
MONTH = Budget(100.0)
TODAY = Budget(10.0, "day")
GROUP = Budget(1000.0, "month", "leads")


def spend(spending: Spending, who: str, usd: float, *budgets: Budget) -> list[BudgetWarning]:
    return spending.write(spending.note(who, usd), budgets)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def spending(tmp_path: Path, clock: Clock) -> Spending:
    return Spending(Database(tmp_path / "state"), clock)


def test_it_warns_with_the_amount_that_makes_it_four_fifths_and_never_again(spending: Spending) -> None:
    assert spend(spending, "alice", 79.99, MONTH) == []
    (warning,) = spend(spending, "alice", 1.01, MONTH)
    assert warning.line == "81 % of the budget of alice for this month is spent: $81.00 of $100.00."
    assert spend(spending, "alice", 5.0, MONTH) == []
    assert spend(spending, "bob", 5.0, MONTH) == [], "everybody has their own"


def test_single_user_is_not_named(spending: Spending) -> None:
    (warning,) = spend(spending, "local", 9.0, TODAY)
    assert warning.line == "90 % of the budget for today is spent: $9.00 of $10.00."


def test_each_of_several_budgets_warns_for_itself(spending: Spending) -> None:
    assert [warning.budget for warning in spend(spending, "alice", 9.0, MONTH, TODAY)] == [TODAY]
    assert [warning.budget for warning in spend(spending, "alice", 75.0, MONTH, TODAY)] == [MONTH]


def test_new_day_and_new_month_warn_again(spending: Spending, clock: Clock) -> None:
    assert len(spend(spending, "alice", 90.0, MONTH, TODAY)) == 2
    clock.now += DAY
    assert [warning.budget for warning in spend(spending, "alice", 9.0, MONTH, TODAY)] == [TODAY]
    clock.now += 31 * DAY
    assert [warning.budget for warning in spend(spending, "alice", 85.0, MONTH)] == [MONTH]


def test_raised_budget_warns_again(spending: Spending) -> None:
    assert len(spend(spending, "alice", 90.0, MONTH)) == 1
    more = Budget(200.0)
    assert spend(spending, "alice", 10.0, more) == []
    assert len(spend(spending, "alice", 60.0, more)) == 1


def test_group_budget_warns_once_for_all_members(tmp_path: Path, clock: Clock) -> None:
    spending = Spending(Database(tmp_path / "state"), clock, groups_of=lambda who: ["leads"])
    assert spend(spending, "alice", 700.0, GROUP) == []
    (warning,) = spend(spending, "bob", 150.0, GROUP)
    assert warning.line == "85 % of the budget of the group leads for this month is spent: $850.00 of $1,000.00."
    assert warning.fields | {"warning": ""} == {
        "period": "2026-09",
        "group": "leads",
        "caller": None,
        "limitUsd": 1000.0,
        "spentUsd": 850.0,
        "warning": "",
    }
    assert spend(spending, "alice", 10.0, GROUP) == []


def test_next_server_repeats_no_warning(spending: Spending, tmp_path: Path, clock: Clock) -> None:
    assert len(spend(spending, "alice", 85.0, MONTH)) == 1
    later = Spending(Database(tmp_path / "state"), clock)
    assert spend(later, "alice", 5.0, MONTH) == []
    (known,) = later.warnings()
    assert (known.principal, known.spent, known.at) == ("alice", 90.0, NOON), "with what is spent by now"
    clock.now += 31 * DAY
    assert later.warnings() == []


def test_one_of_several_servers_sends_the_warning(tmp_path: Path, clock: Clock) -> None:
    servers = [Spending(Database(tmp_path / "state"), clock) for _ in range(4)]
    for server in servers:
        server.refresh()
    together, said = threading.Barrier(len(servers)), list[BudgetWarning]()

    def write(server: Spending) -> None:
        together.wait()
        for _ in range(10):
            said.extend(spend(server, "alice", 2.5, MONTH))

    threads = [threading.Thread(target=write, args=(server,)) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (warning,) = said
    assert warning.spent == 80.0


def test_next_server_sends_the_pending_warnings_of_an_ended_one(tmp_path: Path, clock: Clock) -> None:
    server = "import sys; from pathlib import Path; sys.path[:0] = sys.argv[2:]"
    server += "; from tests.core.state.test_budgets import die_before_report; die_before_report(Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", server, str(tmp_path / "state"), str(ROOT)], check=True)
    first, second = (Spending(Database(tmp_path / "state"), clock) for _ in range(2))
    (warning,) = first.take_unannounced()
    assert (warning.principal, warning.spent) == ("alice", 85.0)
    assert second.take_unannounced() == [], "it is said by one"
    assert first.take_unannounced() == []
    assert spend(second, "alice", 5.0, MONTH) == []
    first.note_announced(warning)
    assert second.take_unannounced() == []
    assert [known.spent for known in second.warnings()] == [90.0]


def test_history_is_complete(spending: Spending, tmp_path: Path, clock: Clock) -> None:
    (warning,) = spend(spending, "alice", 85.0, MONTH)
    spending.note_announced(warning)
    assert Spending(Database(tmp_path / "state"), clock).take_unannounced() == []


def die_before_report(state: Path) -> None:
    """A server that is killed when it has written an amount and said nothing yet."""
    assert len(spend(Spending(Database(state), Clock()), "alice", 85.0, MONTH)) == 1
    os._exit(0)


def test_an_amount_that_could_not_be_written_warns_with_the_next(tmp_path: Path, clock: Clock) -> None:
    database = Database(tmp_path / "state")
    spending = Spending(database, clock)
    database.close()
    with pytest.raises(OSError, match="closed"):
        spend(spending, "alice", 85.0, MONTH)
    assert len(spend(Spending(Database(tmp_path / "state"), clock), "alice", 85.0, MONTH)) == 1


def test_warnings_go_with_the_amounts_that_they_are_about(spending: Spending, clock: Clock) -> None:
    spend(spending, "alice", 85.0, MONTH)
    clock.now += 390 * DAY
    assert spending.clean_up() == 0
    clock.now += 11 * DAY
    assert spending.clean_up() == 2, "the amount and the warning"
