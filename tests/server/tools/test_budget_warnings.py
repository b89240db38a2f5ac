"""Of a budget that is nearly used up everybody hears whom it concerns, once: in the report of the turn, in the audit
trail and the log, in the events that terminals and the console follow, and in `costs`."""

import asyncio
import json
import logging
import sqlite3
import time

import pytest

from claude_code_mcp.core.audit.session_log import SessionLog
from claude_code_mcp.core.model.events import AuditEvent, AuditKind, BudgetWarned, Event
from claude_code_mcp.core.policy.policy import OPEN_PROFILE, Limits, Policy
from claude_code_mcp.core.state.spending import Budget, warn_once
from claude_code_mcp.core.state.state_directory import database_in
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script
from tests.conftest import StartService
from tests.support import warm_commands
from tests.support.waiting import until_true

from .conftest import StartCaller, ToolCaller

LOW = "80 % of the budget for this month is spent: $80."


class Acts:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.seen: list[AuditEvent] = []

    def act(self, act: AuditEvent) -> None:
        self.seen.append(act)

    def event(self, session_id: str, owner: str, event: Event) -> None:
        """Not of interest here."""


async def test_the_turn_that_makes_a_budget_low_says_so_and_no_other(
    start_caller: StartCaller, environment: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    policy = Policy(OPEN_PROFILE.model_copy(update={"limits": Limits(monthly_usd=100)}))
    caller: ToolCaller = await start_caller(policy=policy, toolsets="sessions,code,care")
    caller.service.observe(SessionLog(), SessionLog.EVENTS, SessionLog.ACTS)
    acts = Acts()
    caller.service.observe(acts, events=())
    spending = caller.service._enforcer.limits.spending
    # As if it had been spent before there were warnings.
    await asyncio.to_thread(spending.write, spending.note("local", 80.0))
    first = await caller.ok("claude_code", prompt=script("a", "x"))
    line = first["notice"]
    assert line.startswith(LOW)
    session = caller.session(first)
    status = await caller.ok("claude_get_status", sessionId=session.id)
    assert status["notice"] == line
    assert [event.line for event in session.events.latest(BudgetWarned, 9) if isinstance(event, BudgetWarned)] == [line]
    second = await caller.ok("claude_code_reply", sessionId=session.id, prompt=script("b", "y"))
    assert "notice" not in second, "it was said"
    assert [record.getMessage() for record in caplog.records if record.name.endswith("session_log")] == [line]
    (act,) = [act for act in acts.seen if act.kind is AuditKind.BUDGET_WARNED]
    assert (act.who, act.session_id, act.details["limitUsd"]) == ("local", session.id, 100)
    query = "SELECT body FROM documents WHERE kind = 'budget_warning'"
    ((kept,),) = await asyncio.to_thread(caller.service.state.rows, query)
    assert json.loads(kept)[-1] == "", "it is no server's to say any more"
    costs = await caller.ok("claude_session_costs")
    (budget,) = costs["budgets"]
    assert (budget["limitUsd"], budget["warning"][: len(LOW)]) == (100, LOW)

    environment = {**environment, "CLAUDE_CODE_MCP_STATE_DIR": str(caller.service.settings.state_dir)}
    printed = await asyncio.to_thread(warm_commands.run, ["costs"], environment, caller.sandbox.project)
    assert printed.stdout.splitlines()[-1].startswith(f"Warning: {LOW}")
    for by in ("day", "caller"):
        listed = await asyncio.to_thread(
            warm_commands.run, ["costs", "--by", by, "--json"], environment, caller.sandbox.project
        )
        (row,) = json.loads(listed.stdout)["budgetWarnings"]
        assert (row["caller"], row["limitUsd"], row["warning"][: len(LOW)]) == ("local", 100, LOW)


async def test_server_sends_the_pending_warnings_of_a_killed_one(
    start_service: StartService, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("claude_code_mcp.core.sessions.bookkeeper._LEFT_OVER_DELAY", 0.0)
    now, day = time.time(), time.strftime("%Y-%m-%d", time.gmtime())
    budget, state = Budget(10.0, "month"), database_in(sandbox.root / "state")

    def killed(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO spending VALUES (?, 'alice', '', 9.0)", (day,))
        assert warn_once(db, budget, "alice", day, now, "a-server-that-is-gone") is not None

    await asyncio.to_thread(state.write, killed)
    acts = Acts()
    await start_service(observers=[acts])
    await until_true(lambda: acts.seen)
    assert [(act.kind, act.who, act.session_id) for act in acts.seen] == [(AuditKind.BUDGET_WARNED, "alice", None)]
