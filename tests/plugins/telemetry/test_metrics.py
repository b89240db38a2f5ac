"""The figures: what is told is counted, and no caller can make up labels."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from claude_code_mcp.core.model.events import (
    AuditEvent,
    AuditKind,
    QuestionOpened,
    QuestionSettled,
    Spent,
    TurnEnded,
    TurnStarted,
)
from claude_code_mcp.core.model.outcome import Outcome, OutcomeCode
from claude_code_mcp.core.model.question import Answer, Closure, Question, QuestionKind, Resolution
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.model.usage import ModelUsage, Usage
from claude_code_mcp.plugins.telemetry.metrics import Metrics
from tests.support.clock import settled, stopped_clock

USAGE = Usage({"claude-x-1": ModelUsage(10, 5, 3, 2, 0.5)})


@dataclass
class StateTracker:
    state: State
    live: bool
    id: str = "one"
    owner: str = "alice"
    queued: str | None = None
    memory_bytes: int | None = None


def figure(metrics: Metrics, name: str, **labels: str) -> float | None:
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            if sample.name == f"claude_code_mcp_{name}" and _has(sample.labels, labels):
                return sample.value
    return None


def _has(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(labels.get(name) == value for name, value in wanted.items())


def test_turns_their_time_tokens_and_cost() -> None:
    metrics = Metrics(list)
    for code in (OutcomeCode.COMPLETED, OutcomeCode.COMPLETED, OutcomeCode.TIMEOUT):
        metrics.event("s", "a", TurnStarted(1, "m", "prompt"))
        metrics.event("s", "a", TurnEnded(1, Outcome(code, usage=USAGE)))
    metrics.event("s", "a", Spent(USAGE))
    assert figure(metrics, "turns_total", outcome="completed") == 2
    assert figure(metrics, "turns_total", outcome="timeout") == 1
    assert figure(metrics, "turn_seconds_count", outcome="completed") == 2
    assert figure(metrics, "cost_usd_total", model="claude-x-1") == 2.0
    assert figure(metrics, "tokens_total", model="claude-x-1", kind="input") == 40
    assert figure(metrics, "tokens_total", model="claude-x-1", kind="cache_creation") == 8


def test_questions_by_kind_and_channel_with_their_wait() -> None:
    metrics = Metrics(list)
    question = Question("q", "s", QuestionKind.PERMISSION, "Bash", {}, "", opened_at=100.0)
    metrics.event("s", "a", QuestionOpened(question))
    answered = Resolution(Closure.ANSWERED, "policy", Answer(allow=True), at=103.0)
    metrics.event("s", "a", QuestionSettled(question, answered))
    metrics.event("s", "a", QuestionSettled(question, Resolution(Closure.WITHDRAWN, "claude", at=99.0)))
    labels = {"kind": "permission", "channel": "policy"}
    assert figure(metrics, "questions_opened_total", kind="permission") == 1
    assert figure(metrics, "questions_total", **labels, decision="allow") == 1
    assert figure(metrics, "question_seconds_sum", **labels) == 3.0
    assert figure(metrics, "question_seconds_sum", kind="permission", channel="claude") == 0


def test_errors_by_code() -> None:
    metrics = Metrics(list)
    metrics.act(AuditEvent(AuditKind.FAILED, "a", None, {"code": "SESSION_BUSY"}))
    metrics.act(AuditEvent(AuditKind.AUTH_FAILED, "unknown"))
    assert figure(metrics, "errors_total", code="SESSION_BUSY") == 1
    assert figure(metrics, "acts_total", act="auth_failed") == 1


def test_sessions_by_place_and_state() -> None:
    sessions: list[Any] = [
        StateTracker(State.RUNNING, live=True),
        StateTracker(State.IDLE, live=True, id="two", memory_bytes=500),
        StateTracker(State.IDLE, live=False),
        StateTracker(State.STARTING, live=False, queued="number 1 of 1"),
    ]
    metrics = Metrics(lambda: sessions)
    assert [figure(metrics, "sessions", place=place) for place in ("live", "parked", "queued")] == [2, 1, 1]
    assert figure(metrics, "session_states", state="idle") == 2
    assert (figure(metrics, "memory_bytes", process="server") or 0) > 1_000_000
    assert figure(metrics, "memory_bytes", process="sessions") == 500
    assert (figure(metrics, "session_memory_bytes", session="two"), figure(metrics, "waiting_to_start")) == (500, 1)
    assert figure(metrics, "session_memory_bytes", session="one") is None


def test_costs_tokens_and_turns_by_caller_and_model_without_any_session() -> None:
    metrics = Metrics(list)
    two = Usage({"claude-y-2": ModelUsage(1, 1, cost_usd=0.1), **USAGE.models})
    for owner, usage in (("alice", USAGE), ("alice", two), ("bob", Usage())):
        metrics.event("some-session", owner, TurnEnded(1, Outcome(OutcomeCode.COMPLETED, usage=usage)))
    assert figure(metrics, "cost_usd_total", caller="alice", model="claude-x-1") == 1.0
    assert figure(metrics, "cost_usd_total", caller="alice", model="claude-y-2") == 0.1
    assert figure(metrics, "tokens_total", caller="alice", model="claude-x-1", kind="output") == 10
    assert figure(metrics, "turns_total", caller="alice", model="claude-x-1") == 2, "the model that cost the most"
    assert figure(metrics, "turns_total", caller="bob", model="none") == 1
    assert "some-session" not in metrics.render().decode()


def test_callers_beyond_the_label_limit_are_combined() -> None:
    metrics = Metrics(list)
    for name in ("two words", "x" * 200, *(f"person-{number}" for number in range(150))):
        metrics.event("s", name, Spent(USAGE))
    assert metrics.render().decode().count("claude_code_mcp_cost_usd_total{") == 101
    assert figure(metrics, "cost_usd_total", caller="person-0") == 0.5
    assert figure(metrics, "cost_usd_total", caller="other") == 26.0


def test_metrics_request_shows_no_other_caller() -> None:
    metrics = Metrics(list)
    for name, count in (("alice", 1), ("bob", 2), ("carol", 3)):
        for _ in range(count):
            metrics.event("s", name, TurnEnded(1, Outcome(OutcomeCode.COMPLETED, usage=USAGE)))
    shown = metrics.render("bob").decode()
    costs = [line for line in shown.splitlines() if line.startswith("claude_code_mcp_cost_usd_total{")]
    assert sorted(costs) == [
        'claude_code_mcp_cost_usd_total{caller="bob",model="claude-x-1"} 1.0',
        'claude_code_mcp_cost_usd_total{caller="other",model="claude-x-1"} 2.0',
    ]
    assert "alice" not in shown
    assert "carol" not in shown
    assert figure(metrics, "cost_usd_total", caller="carol") == 1.5, "the operator is still told"


def test_metrics_request_shows_no_session_ids_of_others() -> None:
    sessions: list[Any] = [
        StateTracker(State.RUNNING, True, f"session-{owner}-{number}", owner, memory_bytes=number)
        for owner, number in (("alice", 1), ("bob", 2), ("alice", 4))
    ]
    shown = Metrics(lambda: sessions).render("bob").decode()
    assert [line for line in shown.splitlines() if line.startswith("claude_code_mcp_session_memory_bytes{")] == [
        'claude_code_mcp_session_memory_bytes{session="other"} 5.0',
        'claude_code_mcp_session_memory_bytes{session="session-bob-2"} 2.0',
    ]
    assert "alice" not in shown


async def test_the_delay_of_the_event_loop_is_measured() -> None:
    metrics = Metrics(list)
    with stopped_clock() as clock:
        watching = asyncio.ensure_future(metrics.watch_the_loop())
        for count in range(3):
            await settled()
            assert figure(metrics, "event_loop_lag_seconds_count") == count
            await clock.advance(1)
        watching.cancel()


def test_callers_cannot_make_up_labels() -> None:
    metrics = Metrics(list)
    names = ["sk-ant-api03-secret-name", 'x"} 1\nevil', *(f"claude-{number}" for number in range(200))]
    metrics.event("s", "a", Spent(Usage({name: ModelUsage(1) for name in names})))
    text = metrics.render().decode()
    assert "secret-name" not in text
    assert "evil" not in text
    assert text.count('kind="input"') <= 51
    assert figure(metrics, "tokens_total", model="other", kind="input") == 152


def test_connections_to_servers_are_counted_by_state_and_named_to_the_operator_alone() -> None:
    found = [("tickets", "connected"), ("tickets", "needs-auth"), ("tickets", "connected"), ("files", "failed")]
    metrics = Metrics(list, lambda: found)
    shown = metrics.render().decode()
    assert 'claude_code_mcp_hub_connections{server="tickets",state="connected"} 2.0' in shown
    assert 'claude_code_mcp_hub_connections{server="files",state="failed"} 1.0' in shown
    to_caller = metrics.render("bob").decode()
    assert 'claude_code_mcp_hub_connections{server="other",state="connected"} 2.0' in to_caller
    assert "tickets" not in to_caller
