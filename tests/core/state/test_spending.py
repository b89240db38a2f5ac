"""What callers spend per day is kept, over restarts and between servers, and no dollar is given away twice."""

import math
import subprocess
import sys
import time

import pytest

from claude_code_mcp.core.state.database import Database
from claude_code_mcp.core.state.spending import Budget, NotedAmount, Spending

NOON = 1_790_000_000.0
DAY = 86_400.0


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


def spend(spending: Spending, who: str, usd: float) -> None:
    spending.write(spending.note(who, usd))


def test_amounts_add_up_by_caller(database: Database) -> None:
    spending = Spending(database, Clock())
    spend(spending, "alice", 1.5)
    spend(spending, "alice", 0.5)
    spend(spending, "bob", 4)
    spending.refresh()
    assert (spending.today("alice"), spending.today("bob"), spending.today("carol")) == (2.0, 4.0, 0.0)


def test_other_and_later_servers_see_it(database: Database) -> None:
    clock = Clock()
    one, two = Spending(database, clock), Spending(database, clock)
    spend(one, "alice", 1)
    two.refresh()
    spend(two, "alice", 2)
    one.refresh()
    one.refresh()
    later = Spending(database, clock)
    later.refresh()
    assert one.today("alice") == two.today("alice") == later.today("alice") == 3


def test_new_day_starts_at_zero(database: Database) -> None:
    clock = Clock()
    spending = Spending(database, clock)
    spend(spending, "alice", 1)
    clock.now += DAY
    spending.refresh()
    assert spending.today("alice") == 0
    spend(spending, "alice", 2)
    spending.refresh()
    assert spending.today("alice") == 2


def test_an_amount_that_is_written_after_midnight_counts_once_for_the_new_day(database: Database) -> None:
    clock = Clock()
    spending = Spending(database, clock)
    noted = spending.note("alice", 3)
    clock.now += DAY
    spending.write(noted)
    assert spending.today("alice") == 3
    spending.refresh()
    assert spending.today("alice") == 3


def test_unwritten_costs_count_in_this_server(database: Database) -> None:
    spending = Spending(database, Clock())
    spend(spending, "alice", 1)
    database.close()
    noted = spending.note("alice", 2)
    with pytest.raises(OSError, match="closed"):
        spending.write(noted)
    with pytest.raises(OSError, match="closed"):
        spending.reserve("alice", "a", 10, everything)
    assert spending.today("alice") == 3


@pytest.mark.parametrize("usd", [-5.0, float("nan"), float("inf")])
def test_no_amount_makes_others_smaller(database: Database, usd: float) -> None:
    spending = Spending(database, Clock())
    spend(spending, "alice", 1)
    Spending(database, Clock()).write(NotedAmount("alice", usd))
    spending.refresh()
    assert spending.today("alice") == 1


def test_sessions_of_old_days_go_and_the_days_stay(database: Database) -> None:
    clock = Clock()
    spending = Spending(database, clock)
    for _ in range(40):
        spending.write(spending.note("alice", 1, "a-session"))
        clock.now += DAY
    assert spending.clean_up() == 9
    query = "SELECT count(*), sum(session_id != '') FROM spending"
    assert database.read(lambda db: db.execute(query).fetchone()) == (40, 31)


def half(left: float) -> float:
    return left / 2


def everything(left: float) -> float:
    return left


def test_reserved_budget_is_unavailable_to_other_sessions_and_servers(database: Database) -> None:
    clock = Clock()
    one, two = Spending(database, clock), Spending(database, clock)
    assert one.reserve("alice", "a", 10, half) == 5
    assert two.reserve("alice", "b", 10, half) == 2.5
    assert two.reserve("bob", "c", 10, everything) == 10
    assert one.reserve("alice", "d", 10, everything) == 2.5
    assert two.reserve("alice", "e", 10, everything) == 0


def test_a_reservation_becomes_smaller_as_its_session_spends(database: Database) -> None:
    clock = Clock()
    one, two = Spending(database, clock), Spending(database, clock)
    one.reserve("alice", "a", 10, half)
    one.write(one.note("alice", 3, "a"))
    assert (one.today("alice"), one.reserved("a")) == (3, 2)
    assert two.reserve("alice", "b", 10, everything) == 5
    assert one.release("a")
    one.write_reservation("alice", "a")
    assert not one.release("a")
    assert two.reserve("alice", "b", 10, everything) == 7


def test_a_session_reserves_again_in_place_of_what_it_had(database: Database) -> None:
    spending = Spending(database, Clock())
    assert spending.reserve("alice", "a", 10, everything) == 10
    assert spending.moved("a", "b") == "alice"
    assert spending.reserved("a") is None
    assert spending.moved("a", "c") is None
    assert spending.reserve("alice", "b", 10, half) == 5


def test_the_reservations_of_a_server_that_died_count_no_more(database: Database) -> None:
    code = (
        "import sys, os, pathlib\n"
        "from claude_code_mcp.core.state.database import Database\n"
        "from claude_code_mcp.core.state.spending import Spending\n"
        "spending = Spending(Database(pathlib.Path(sys.argv[1])), lambda: float(sys.argv[2]))\n"
        "print(spending.reserve('alice', 'a', 10, lambda left: left), flush=True)\n"
        "sys.stdin.read()\n"
        "os._exit(9)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(database.directory), str(NOON)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "10.0\n"
        here = Spending(database, Clock())
        assert here.reserve("alice", "b", 10, everything) == 0
        other.communicate()
    assert here.reserve("alice", "b", 10, everything) == 10


# -- months and groups ------------------------------------------------------------------------------------------------


def test_group_spending_remains_after_a_member_leaves(database: Database) -> None:
    groups = {"alice": ["leads"], "bob": ["leads"]}
    spending = Spending(database, Clock(), lambda who: groups.get(who, ()))
    for who, usd in (("alice", 3.0), ("bob", 4.0), ("carol", 50.0)):
        spend(spending, who, usd)
    groups.clear()
    spend(spending, "alice", 10.0)
    leads = Budget(10.0, "month", "leads")
    assert spending.spent("alice", leads) == 7.0
    assert Spending(database, Clock()).spent("dave", leads) == 7.0
    lines = spending.by_period(groups=True)
    assert [(line.group, line.principal, line.usd) for line in lines] == [
        ("leads", "alice", 3.0),
        ("leads", "bob", 4.0),
    ]


def test_concurrent_costs_all_count_for_the_group(database: Database) -> None:
    spending = Spending(database, Clock(), lambda _: ["leads"])
    noted = [spending.note("alice", usd, "a-session") for usd in (1.0, 2.0, 1.0)]
    for amount in reversed(noted):
        spending.write(amount)
    budget = Budget(10.0, "month", "leads")
    for server in (spending, Spending(database, Clock())):
        assert server.spent("alice", budget) == 4.0


def test_an_amount_is_that_of_its_own_groups_although_an_equal_one_was_never_written(database: Database) -> None:
    groups = {"alice": ["leads"]}
    spending = Spending(database, Clock(), lambda who: groups.get(who, ()))
    spending.note("alice", 1.0, "a-session")  # the server is stopped before it is written
    groups.clear()
    spending.write(spending.note("alice", 1.0, "a-session"))
    assert spending.by_period(groups=True) == []


def test_group_budget_is_not_reserved_twice(database: Database) -> None:
    clock, groups = Clock(), {"alice": ["leads"], "bob": ["leads"], "carol": ["others"]}
    one, two = (Spending(database, clock, lambda who: groups[who]) for _ in range(2))
    budgets = [Budget(10.0, "month", "leads")]
    assert one.reserve("alice", "a", math.inf, half, budgets) == 5
    assert two.reserve("bob", "b", math.inf, everything, budgets) == 5
    assert one.reserve("alice", "c", math.inf, everything, budgets) == 0
    one.write(one.note("alice", 4.0, "a"))
    assert one.release("a")
    one.write_reservation("alice", "a")
    assert two.reserve("bob", "b", math.inf, everything, budgets) == 6, "its own is replaced"
    assert two.reserve("carol", "d", math.inf, half, [Budget(8.0)]) == 4


def test_the_budget_with_the_least_left_is_known_while_something_is_reserved(database: Database) -> None:
    spending = Spending(database, Clock(), lambda _: ["leads"])
    day, month, group = Budget(10.0, "day"), Budget(20.0), Budget(30.0, "month", "leads")
    spending.reserve("alice", "a", 10.0, half, [month, group])
    assert spending.tightest_budget("a") == day
    spending.write(spending.note("bob", 25.0))
    spending.release("a")
    assert spending.tightest_budget("a") is None
    spending.reserve("alice", "a", 10.0, half, [month, group])
    assert spending.tightest_budget("a") == group
    spending.moved("a", "b")
    assert spending.tightest_budget("b") == group


def test_a_month_is_that_of_the_calendar(database: Database) -> None:
    clock = Clock()
    spending = Spending(database, clock)
    spend(spending, "alice", 6.0)
    first = time.gmtime(clock.now)
    clock.now += DAY
    while time.gmtime(clock.now).tm_mon == first.tm_mon:
        assert spending.reserve("alice", "a", math.inf, everything, [Budget(10.0)]) == 4
        spending.release("a")
        clock.now += DAY
    assert spending.reserve("alice", "a", math.inf, everything, [Budget(10.0)]) == 10


def test_sessions_of_old_days_are_added_up_and_no_month_is_lost(database: Database) -> None:
    clock = Clock()
    spending = Spending(database, clock)
    for session, usd in (("a", 1.0), ("b", 2.0)):
        spending.write(spending.note("alice", usd, session))
    before = spending.by_period()
    clock.now += 60 * DAY
    assert spending.clean_up() == 2
    assert spending.clean_up() == 0
    assert spending.by_period() == before
    clock.now += 400 * DAY
    spending.clean_up()
    assert spending.by_period() == []
