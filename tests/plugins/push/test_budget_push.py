"""A budget that is nearly used up is told where people have notifications sent: its owner, or all of its group."""

import asyncio
import json
from pathlib import Path

import pytest

from claude_code_mcp.core.model.events import AuditEvent, AuditKind, BudgetWarned
from claude_code_mcp.core.policy.policy import OPEN_PROFILE, GroupBudget, Policy
from claude_code_mcp.core.redaction import Redactor
from claude_code_mcp.core.state.database import Database
from claude_code_mcp.core.state.documents import Documents
from claude_code_mcp.core.state.spending import Budget, BudgetWarning
from claude_code_mcp.plugins.console.event_frames import FrameEncoder
from claude_code_mcp.plugins.push.delivery import Push
from claude_code_mcp.plugins.push.preferences import ALL_NEWS, PreferenceStore, Receiver, notice_of
from claude_code_mcp.plugins.push.settings import PushSettings
from tests.conftest import StartService
from tests.support.waiting import until_true

from .receiver import receiving

SECRET = "whsec_" + "eHh4" * 8


def warned(who: str, group: str | None) -> AuditEvent:
    warning = BudgetWarning(Budget(10.0, "month", group), who, "2026-11", 8.5, 0.0)
    return AuditEvent(AuditKind.BUDGET_WARNED, who, "s-1", warning.fields)


@pytest.mark.parametrize(
    ("group", "notified"), [(None, {"/alice"}), ("leads", {"/alice", "/bob"})], ids=["own", "group"]
)
async def test_warning_reaches_only_affected_people(
    start_service: StartService, tmp_path: Path, group: str | None, notified: set[str]
) -> None:
    policy = Policy(OPEN_PROFILE, budgets={"leads": GroupBudget(monthly_usd=10)})
    names = ("alice", "bob", "carol")
    for name in names[:2]:
        policy.assign(name, ["leads"])
    service = await start_service(policy=policy, principals=names, sections=[PushSettings(push_private=names)])
    push = Push(service, tmp_path / "web")
    push.base = "http://console/"
    with receiving() as webhook:
        for name in names:
            url = f"{webhook.url}/{name}"
            push.preferences.add(name, Receiver(id=name, kind="webhook", url=url, created_at=0.0, secret=SECRET))
        push.act(warned("alice", group))
        push.act(AuditEvent(AuditKind.CANCELLED, "alice", "s-1"))
        received = [await asyncio.to_thread(webhook.next) for _ in notified]
        await until_true(lambda: not push.pending)
        assert webhook.received.empty()
        push.close()
    assert {each.path for each in received} == notified
    for each in received:
        body = json.loads(each.body)
        assert (body["kind"], body["sessionId"], body["url"]) == ("budget", None, "http://console/#/costs")
        assert body["body"].endswith("for this month is spent: $8.50 of $10.00.")


def test_notices_of_two_budgets_do_not_replace_each_other() -> None:
    made = [notice_of("", BudgetWarned(line), lambda: "Budget", Redactor()) for line in ("The day.", "The month.")]
    assert len({notice.tag for notice in made if notice is not None}) == 2


def test_who_chose_before_there_was_this_kind_has_it_until_they_say_otherwise(tmp_path: Path) -> None:
    documents, store = Documents(Database(tmp_path), "push"), PreferenceStore(Database(tmp_path))
    documents.write("alice", {"principal": "alice", "events": ["question"], "quiet_hours": None, "receivers": []})
    assert store.read("alice").events == ("question", "budget")
    assert store.read("bob").events == ALL_NEWS
    store.update("alice", lambda chosen: chosen.model_copy(update={"events": ("question",)}))
    assert store.read("alice").events == ("question",)


def test_question_appears_in_the_event_stream() -> None:
    encoder = FrameEncoder(Redactor(["hunter2-hunter2"]), str)
    (frame,) = encoder.take(BudgetWarned("The budget of hunter2-hunter2 is used up.", seq=1, at=0.0))
    assert b"event: budget" in frame.data
    assert b"hunter2" not in frame.data
