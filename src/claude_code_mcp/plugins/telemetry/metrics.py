"""Prometheus metrics: sessions, turns, questions, tokens and costs, memory and event loop delay.

Labels are limited: a number of callers and models have their own, the others share `other`. Callers other than the
operator see only their own names. Imports prometheus_client, so only servers with metrics enabled import this module.
"""

import asyncio
import re
import time
from collections import Counter as CountOf
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

import psutil
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from ...core.model.events import (
    AuditEvent,
    AuditKind,
    Event,
    QuestionOpened,
    QuestionSettled,
    Spent,
    TurnEnded,
    TurnStarted,
)
from ...core.model.states import State
from ...core.model.usage import Usage
from ...core.sessions.session import Session

_PREFIX = "claude_code_mcp"
_TURN_SECONDS = (0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_WAIT_SECONDS = (0.01, 0.1, 1, 5, 15, 30, 60, 120, 300, 600)
_LAG_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
_LAG_INTERVAL = 0.5
_MAX_MODELS = 50
_MAX_CALLERS = 100
_OTHER = "other"
_NO_MODEL = "none"
"""For a turn that ended before a model was called."""


class Metrics:
    """An observer that counts. `sessions` returns the current sessions in memory, and `connections` the connections to
    the hub's MCP servers: name and state."""

    def __init__(
        self,
        sessions: Callable[[], Iterable[Session]],
        connections: Callable[[], Iterable[tuple[str, str]]] = tuple,
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the number of lines
        self._registry = registry = CollectorRegistry()
        self._sessions = sessions
        self._started: dict[str, float] = {}
        self._models: set[str] = set()
        self._callers: set[str] = set()
        self._turns = Counter(f"{_PREFIX}_turns", "Turns by outcome", ["outcome", "caller", "model"], registry=registry)
        self._turn_seconds = Histogram(
            f"{_PREFIX}_turn_seconds",
            "Duration of turns in seconds",
            ["outcome"],
            buckets=_TURN_SECONDS,
            registry=registry,
        )
        self._errors = Counter(f"{_PREFIX}_errors", "Calls that failed, by code", ["code"], registry=registry)
        self._acts = Counter(f"{_PREFIX}_acts", "Actions of callers", ["act"], registry=registry)
        self._questions = Counter(
            f"{_PREFIX}_questions",
            "Closed questions by kind, channel and decision",
            ["kind", "channel", "decision"],
            registry=registry,
        )
        self._opened = Counter(f"{_PREFIX}_questions_opened", "Questions opened, by kind", ["kind"], registry=registry)
        self._waits = Histogram(
            f"{_PREFIX}_question_seconds",
            "Time until questions were closed, in seconds",
            ["kind", "channel"],
            buckets=_WAIT_SECONDS,
            registry=registry,
        )
        self._tokens = Counter(
            f"{_PREFIX}_tokens", "Tokens by model and caller", ["model", "kind", "caller"], registry=registry
        )
        self._cost = Counter(
            f"{_PREFIX}_cost_usd", "Cost in USD by model and caller", ["model", "caller"], registry=registry
        )
        self._lag = Histogram(
            f"{_PREFIX}_event_loop_lag_seconds", "Delay of the event loop", buckets=_LAG_SECONDS, registry=registry
        )
        registry.register(_CurrentSessions(sessions))
        registry.register(_HubConnections(connections))

    def render(self, viewer: str | None = None) -> bytes:
        """All metrics in Prometheus' text format. For a `viewer` who is a caller, other callers are merged and their
        sessions have no id. Blocks briefly to measure processes."""
        if viewer is None:
            return generate_latest(self._registry)
        # prometheus_client only asks for the metrics to be written.
        own = {session.id for session in self._sessions() if session.owner == viewer}
        shown: Any = _CallerView(self._registry, viewer, own)
        return generate_latest(shown)

    async def watch_the_loop(self) -> None:
        """Measures the event loop's delay. Never returns."""
        while True:
            due = time.perf_counter() + _LAG_INTERVAL
            await asyncio.sleep(_LAG_INTERVAL)
            self._lag.observe(max(0.0, time.perf_counter() - due))

    # -- observing --------------------------------------------------------------------------------------------

    def act(self, act: AuditEvent) -> None:
        self._acts.labels(str(act.kind)).inc()
        if act.kind is AuditKind.FAILED:
            self._errors.labels(str(act.details.get("code", "INTERNAL"))).inc()

    def event(self, session_id: str, owner: str, event: Event) -> None:
        match event:
            case TurnStarted():
                self._started[session_id] = time.monotonic()
            case TurnEnded(outcome=outcome):
                took = time.monotonic() - self._started.pop(session_id, time.monotonic())
                model = max(outcome.usage.models.items(), key=lambda used: used[1].cost_usd, default=(None, None))[0]
                shown = _NO_MODEL if model is None else self._model_label(model)
                self._turns.labels(str(outcome.code), self._caller_label(owner), shown).inc()
                self._turn_seconds.labels(str(outcome.code)).observe(took)
                self._count_usage(outcome.usage, owner)
            case Spent(usage=usage):
                self._count_usage(usage, owner)
            case QuestionOpened(question=question):
                self._opened.labels(str(question.kind)).inc()
            case QuestionSettled(question=question, resolution=resolution):
                answer = resolution.answer
                decision = "none" if answer is None else "allow" if answer.allow else "deny"
                self._questions.labels(str(question.kind), resolution.by, decision).inc()
                waited = max(0.0, resolution.at - question.opened_at)
                self._waits.labels(str(question.kind), resolution.by).observe(waited)

    def _count_usage(self, usage: Usage, owner: str) -> None:
        caller = self._caller_label(owner)
        for name, used in usage.models.items():
            model = self._model_label(name)
            self._cost.labels(model, caller).inc(used.cost_usd)
            self._tokens.labels(model, "input", caller).inc(used.input_tokens)
            self._tokens.labels(model, "output", caller).inc(used.output_tokens)
            self._tokens.labels(model, "cache_read", caller).inc(used.cache_read_tokens)
            self._tokens.labels(model, "cache_creation", caller).inc(used.cache_creation_tokens)

    def _caller_label(self, caller: str) -> str:
        """Anyone known to an issuer may become a caller, so labels are limited: the first callers get their own."""
        fits = re.fullmatch(r"[!-~]{1,128}", caller) is not None
        if not fits or (caller not in self._callers and len(self._callers) >= _MAX_CALLERS):
            return _OTHER
        self._callers.add(caller)
        return caller

    def _model_label(self, model: str) -> str:
        """Callers choose models, so labels are limited in form and number; other models are `other`."""
        fits = re.fullmatch(r"claude[A-Za-z0-9.:@\[\]-]{0,60}", model) is not None
        if not fits or (model not in self._models and len(self._models) >= _MAX_MODELS):
            return _OTHER
        self._models.add(model)
        return model


class _CallerView:
    """The metrics of a registry as one caller may see them: other callers are added up."""

    def __init__(self, registry: CollectorRegistry, viewer: str, sessions: Container[str]) -> None:
        """`sessions` are the viewer's own, because ids of others are not visible to them."""
        self._registry = registry
        # Hidden as well: the MCP servers that the policy may conceal from the viewer.
        self._shown: dict[str, Container[str]] = {"caller": {viewer}, "session": sessions, "server": ()}

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            if any(not sample.labels.keys().isdisjoint(self._shown) for sample in metric.samples):
                metric.samples = [*self._merged(metric.samples)]
            yield metric

    def _merged(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        sums: defaultdict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
        for sample in samples:
            shown = (
                (label, value if label not in self._shown or value in self._shown[label] else _OTHER)
                for label, value in sample.labels.items()
            )
            sums[sample.name, tuple(shown)] += sample.value
        for (name, labels), value in sums.items():
            yield Sample(name, dict(labels), value)


class _CurrentSessions(Collector):
    """Gauges that are computed when the metrics are rendered."""

    def __init__(self, sessions: Callable[[], Iterable[Session]]) -> None:
        self._sessions = sessions

    def collect(self) -> Iterator[Metric]:
        sessions = list(self._sessions())
        places = GaugeMetricFamily(f"{_PREFIX}_sessions", "Sessions in memory", labels=["place"])
        queued = sum(session.state is State.STARTING for session in sessions)
        parked = sum(not session.live and session.state is not State.STARTING for session in sessions)
        places.add_metric(["live"], sum(session.live for session in sessions))
        places.add_metric(["queued"], queued)
        places.add_metric(["parked"], parked)
        yield places
        states = GaugeMetricFamily(f"{_PREFIX}_session_states", "Sessions in memory by state", labels=["state"])
        for state in State:
            states.add_metric([str(state)], sum(session.state is state for session in sessions))
        yield states
        memory = GaugeMetricFamily(f"{_PREFIX}_memory_bytes", "Memory in use", labels=["process"])
        memory.add_metric(["server"], psutil.Process().memory_info().rss)
        memory.add_metric(["sessions"], sum(session.memory_bytes or 0 for session in sessions))
        yield memory
        own = GaugeMetricFamily(
            f"{_PREFIX}_session_memory_bytes", "Memory of a session, including its child processes", labels=["session"]
        )
        for session in sessions:
            if session.memory_bytes is not None:
                own.add_metric([session.id], session.memory_bytes)
        yield own
        waiting = GaugeMetricFamily(f"{_PREFIX}_waiting_to_start", "Sessions waiting to start")
        waiting.add_metric([], sum(session.queued is not None for session in sessions))
        yield waiting


class _HubConnections(Collector):
    """The connections to MCP servers, by server and state, computed when the metrics are rendered."""

    def __init__(self, connections: Callable[[], Iterable[tuple[str, str]]]) -> None:
        self._connections = connections

    def collect(self) -> Iterator[Metric]:
        found = GaugeMetricFamily(
            f"{_PREFIX}_hub_connections", "Connections to MCP servers by state", labels=["server", "state"]
        )
        for (server, state), count in CountOf(self._connections()).items():
            found.add_metric([server, state], count)
        yield found
