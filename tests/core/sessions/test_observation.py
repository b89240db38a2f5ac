"""Observers: each is told, whatever becomes of the others."""

import pytest

from claude_code_mcp.core.errors import LimitReached, SessionNotFound
from claude_code_mcp.core.model.events import AuditEvent, AuditKind, Event, Noise
from claude_code_mcp.core.sessions.observers import ObserverList


class Listening:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.acts: list[AuditEvent] = []

    def event(self, session_id: str, owner: str, event: Event) -> None:
        self.events.append(event)

    def act(self, act: AuditEvent) -> None:
        self.acts.append(act)


class Failing(Listening):
    def event(self, session_id: str, owner: str, event: Event) -> None:
        raise ValueError("no disk")

    def act(self, act: AuditEvent) -> None:
        raise ValueError("no disk")


@pytest.fixture
def listening() -> Listening:
    return Listening()


@pytest.fixture
def observers(listening: Listening) -> ObserverList:
    observers = ObserverList()
    observers.add(Failing())
    observers.add(listening)
    return observers


def test_an_observer_that_fails_harms_no_other(
    observers: ObserverList, listening: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    happened, act = Noise("line"), AuditEvent(AuditKind.INTERRUPTED, "alice", "s-1")
    observers.event("s-1", "alice", happened)
    observers.act(act)
    assert (listening.events, listening.acts) == ([happened], [act])
    first, second = (record.message for record in caplog.records)
    assert {"Failing", "Noise", "s-1"} <= {*first.split()}
    assert {"Failing", "interrupted", "alice"} <= {*second.split()}


def test_a_refusal_is_reported_and_raised(observers: ObserverList, listening: Listening) -> None:
    with pytest.raises(LimitReached), observers.auditing_refusals("alice", "create"):
        raise LimitReached("Too many.", limit=3)
    (refused,) = listening.acts
    assert (refused.kind, refused.who, refused.details["what"]) == (AuditKind.REFUSED, "alice", "create")
    with pytest.raises(ValueError, match="other"), observers.auditing_refusals("alice", "create"):
        raise ValueError("other")
    assert listening.acts == [refused], "only what the policy and the limits refuse"


def test_a_foreign_session_reads_like_one_that_does_not_exist(observers: ObserverList, listening: Listening) -> None:
    error = observers.foreign_session("s-1", "mallory")
    assert isinstance(error, SessionNotFound)
    assert "s-1" in error.message
    assert listening.acts[0].details["reason"] == "another caller's session"
