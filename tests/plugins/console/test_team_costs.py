"""What everybody has spent, for whom the policy shows it to, and for nobody else."""

import calendar
import csv
import io
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from claude_code_mcp.core.state.spending import Spending
from claude_code_mcp.core.state.state_directory import database_in
from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import script, text
from tests.support import warm_commands
from tests.support.waiting import until

from .conftest import Console, running_console
from .console_client import Browser
from .test_conversation import ended, start

POLICY = """
default = "member"

[profiles.member]
isolation = "none"
limits = { daily_usd = 20.0 }

[profiles.treasurer]
base = "member"
costs = "everybody"
limits = { monthly_usd = 100.0 }

[principals]
carol = "treasurer"

[budgets.platform]
monthly_usd = 50.0
"""


def today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


@pytest.fixture(scope="module")
def day() -> str:
    """Of what others have spent. Not that of the import: a run may begin before midnight and come here after it."""
    return today()


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory, model: ScriptedModelThread, day: str) -> Iterator[Console]:
    root = tmp_path_factory.mktemp("team")
    (root / "policy.toml").write_text(POLICY)
    policy = str(root / "policy.toml")
    with running_console(root, model.url, CLAUDE_CODE_MCP_POLICY=policy, CLAUDE_CODE_MCP_PROFILE="member") as console:
        # As another server on the same state would have written it, for somebody in the group.
        others = Spending(
            database_in(console.state),
            clock=lambda: calendar.timegm(time.strptime(day, "%Y-%m-%d")),
            groups_of=lambda who: ["platform"] if who == "dave" else [],
        )
        for who, usd in (("dave", 45.0), ("bob", 1.25)):
            others.write(others.note(who, usd, f"session of {who}"))
        yield console


def report(browser: Browser, query: str) -> dict[str, Any]:
    answered = browser.get(f"/api/costs?of=everybody&{query}")
    assert answered.status == 200, answered.body
    return dict(answered.json)


def test_who_is_shown_it_sees_people_and_groups_by_month_and_day_as_the_command_prints_them(
    team: Console, day: str
) -> None:
    carol = team.browser("carol")
    assert carol.get("/api/me").json["allCosts"] is True
    months = report(carol, "by=caller")
    assert months["lines"] == [
        {"name": "bob", "period": day[:7], "group": None, "usd": 1.25},
        {"name": "dave", "period": day[:7], "group": None, "usd": 45.0},
    ]
    assert months["total"] == {"usd": 46.25}
    assert report(carol, "by=caller&per=day")["lines"] == [
        {"name": "bob", "period": day, "group": None, "usd": 1.25},
        {"name": "dave", "period": day, "group": None, "usd": 45.0},
    ]
    assert report(carol, "by=group")["lines"] == [{"name": "dave", "period": day[:7], "group": "platform", "usd": 45.0}]
    assert report(carol, "by=caller&since=2999-01-01")["lines"] == []
    for per in ("month", "day"):
        command = ["costs", "--by", "caller", "--per", per, "--json"]
        printed = json.loads(warm_commands.run(command, team.environment, team.project).stdout)
        shown = report(carol, f"by=caller&per={per}")["lines"]
        assert [(line[per], line["caller"], line["usd"]) for line in printed["lines"]] == [
            (line["period"], line["name"], line["usd"]) for line in shown
        ]


def test_the_budgets_of_all_are_shown_with_whose_they_are_and_those_that_are_low_warn(team: Console) -> None:
    budgets = report(team.browser("carol"), "by=caller")["budgets"]
    rows = [(row.get("caller"), row.get("group"), row["period"], row["limitUsd"], row["spentUsd"]) for row in budgets]
    assert rows == [
        ("dave", None, "day", 20.0, 45.0),
        (None, "platform", "month", 50.0, 45.0),
        ("bob", None, "day", 20.0, 1.25),
        ("carol", None, "day", 20.0, 0.0),
        ("carol", None, "month", 100.0, 0.0),
    ]
    assert [row.get("warning") for row in budgets] == [
        "225 % of the budget of dave for today is spent: $45.00 of $20.00.",
        "90 % of the budget of the group platform for this month is spent: $45.00 of $50.00.",
        None,
        None,
        None,
    ]


def test_sessions_of_all_are_added_up_by_project_model_day_and_month_and_never_listed(team: Console) -> None:
    alice, carol = team.browser("alice"), team.browser("carol")
    before = today()
    ended(alice, start(alice, team, script("Secret plan", text("Done."))))
    until(lambda: alice.get("/api/costs?by=session").json["lines"], "the costs are not written down")
    assert carol.get("/api/costs?by=project").json["lines"] == [], "of her own there is nothing"
    days = {before, today()}  # it may be midnight just now
    for by, names in (("project", {str(team.project)}), ("day", days), ("month", {each[:7] for each in days})):
        [line] = report(carol, f"by={by}")["lines"]
        assert line["name"] in names
        assert line["usd"] > 0
        assert line["sessions"] == 1
    assert report(carol, "by=model")["total"]["usd"] > 0
    models = {line["name"] for line in report(carol, "by=model")["lines"]}
    for asked, split, names in (
        (carol, "model", models),
        (alice, "model", models),
        (carol, "project", {str(team.project)}),
    ):
        whose = "everybody" if asked is carol else "own"
        [line] = asked.get(f"/api/costs?of={whose}&by=day&split={split}").json["lines"]
        assert set(line["parts"]) == names
        assert sum(line["parts"].values()) == pytest.approx(line["usd"])
    refused = carol.get("/api/costs?of=everybody&by=session")
    assert (refused.status, refused.json["error"]["code"]) == (403, "PERMISSION_DENIED")
    assert b"Secret plan" not in refused.body


@pytest.mark.parametrize("by", ["caller", "group", "project", "model", "day", "month", "session"])
def test_other_callers_are_refused_and_audited(team: Console, by: str) -> None:
    bob = team.browser("bob")
    assert bob.get("/api/me").json["allCosts"] is False
    refused = bob.get(f"/api/costs?of=everybody&by={by}")
    assert (refused.status, refused.json["error"]["code"]) == (403, "PERMISSION_DENIED")
    assert b"dave" not in refused.body
    assert "costs of all callers" in team.audited("costs of all callers")
    assert bob.get(f"/api/costs?by={by}&format=csv").status == (400 if by in ("caller", "group") else 200)


def test_who_only_watches_a_session_learns_nothing_of_what_others_spend(team: Console) -> None:
    carol, bob = team.browser("carol"), team.browser("bob")
    session = start(carol, team, script("Look", text("Seen.")))
    assert carol.ask("PUT", f"/api/sessions/{session}/shares/bob", {"access": "watch"}).status == 200
    assert bob.get(f"/api/sessions/{session}").status == 200
    assert bob.get("/api/costs?of=everybody&by=caller").status == 403


def test_it_comes_as_a_table_too_and_what_is_no_choice_is_refused(team: Console) -> None:
    carol = team.browser("carol")
    table = carol.get("/api/costs?of=everybody&by=caller&format=csv")
    rows = list(csv.DictReader(io.StringIO(table.body.decode())))
    assert [(row["name"], row["usd"]) for row in rows][:1] != []
    assert {row["name"] for row in rows} >= {"bob", "dave"}
    for query in ("of=anybody", "of=everybody&by=caller&per=year", "of=everybody&by=nothing", "by=day&split=session"):
        assert carol.get(f"/api/costs?{query}").status == 400
