"""Traces, metrics and logs by OpenTelemetry, sent over OTLP to the destination in the usual `OTEL_…` variables.

Imports the SDK and the exporter of OpenTelemetry (the extra `otel`), so only servers with it enabled import this
module. Names and attributes follow the semantic conventions for generative AI where they define any.

A turn is a span (`invoke_agent`) below the request that started it, with a span for each model response (`chat`), each
tool call (`execute_tool`) and each question. The MCP SDK has a span for each request, below the client's if its
`_meta` has a `traceparent`, and passes the trace on to MCP servers of the hub: a session's call is below the tool of
its turn. A Claude Code process gets the trace of the turn that it was started for in its environment (`TRACEPARENT`),
which it reads once. Spans contain no prompts, answers, arguments or results. Data from a session is untrusted: texts
are cut, and the number of open spans is limited.

Log records are exported too: the lines of standard error, with secrets removed. A line that is logged during a request
has its trace. Exporting never blocks the caller: records that cannot be sent in time are dropped.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from opentelemetry import context, metrics, propagate, trace
from opentelemetry._logs import SeverityNumber
from opentelemetry.context import get_current
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode

from ... import __version__
from ...core.model.events import AuditEvent, Event, Message, QuestionOpened, QuestionSettled, TurnEnded, TurnStarted
from ...core.model.text import cut
from ...core.model.usage import Usage
from ...core.sessions.live.session_traces import use_traces

log = logging.getLogger(__name__)

_MAX_NAME = 120
_MAX_OPEN = 200
"""Open spans of one turn: a session could start tools endlessly."""
_MAX_LABELS = 100
"""Callers and models with their own label in metrics; the rest are `other`."""
_PROVIDER = {"gen_ai.provider.name": "anthropic"}


@dataclass
class _Turn:
    """The open spans of a running turn."""

    span: Span
    since: int
    """When the model last received input, in nanoseconds."""
    chat: tuple[str, Span, int] | None = None
    """The response that is being written: its id, its span, and the time of its last fragment."""
    tools: dict[str, Span] = field(default_factory=dict)
    questions: dict[str, Span] = field(default_factory=dict)


class Telemetry:
    """An observer that exports turns, model responses, tool calls and questions. `close` flushes them."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        """Set up the providers of this process; from then on the MCP SDK's spans are exported too."""
        resource = Resource.create({"service.name": "claude-code-mcp", "service.version": __version__})
        self._traces = TracerProvider(resource=resource)
        self._traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._metrics = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], resource=resource)
        trace.set_tracer_provider(self._traces)
        metrics.set_meter_provider(self._metrics)
        self._tracer = self._traces.get_tracer("claude-code-mcp", __version__)
        meter = self._metrics.get_meter("claude-code-mcp", __version__)
        self._duration = meter.create_histogram("gen_ai.client.operation.duration", "s", "Duration of turns")
        self._tokens = meter.create_histogram("gen_ai.client.token.usage", "{token}", "Tokens used by turns")
        self._cost = meter.create_counter("claude_code_mcp.cost", "{USD}", "Cost of turns")
        self._decisions = meter.create_counter("claude_code_mcp.questions", "{question}", "Questions by decision")
        self._redact = redact
        self._turns: dict[str, _Turn] = {}
        self._labels: dict[str, set[str]] = {"caller": set(), "model": set()}
        self._logs = TelemetryLogs(resource, redact)
        use_traces(self)

    def close(self) -> None:
        """Flush and shut down; blocks until everything is sent or has failed."""
        use_traces(None)
        for turn in self._turns.values():
            _end_all(turn)
            turn.span.end()
        self._traces.shutdown()
        self._metrics.shutdown()
        self._logs.close()

    # -- the traces of sessions, see `SessionTraces` --------------------------------------------------------------

    def variables(self, session_id: str) -> Mapping[str, str]:
        turn, carrier = self._turns.get(session_id), dict[str, str]()
        if turn is None:
            return {}
        propagate.inject(carrier, trace.set_span_in_context(turn.span))
        if "traceparent" not in carrier:
            return {}  # the operator configured other propagators
        # Both: the environment may contain the trace with which the server was started.
        return {"TRACEPARENT": carrier["traceparent"], "TRACESTATE": carrier.get("tracestate", "")}

    @contextlib.contextmanager
    def within(self, session_id: str, tool_use_id: str) -> Iterator[None]:
        turn = self._turns.get(session_id)
        # Without a turn, no trace applies: the current one belongs to a finished request.
        found = context.Context()
        if turn is not None:
            found = trace.set_span_in_context(turn.tools.get(tool_use_id, turn.span), found)
        token = context.attach(found)
        try:
            yield
        finally:
            context.detach(token)

    # -- events ---------------------------------------------------------------------------------------------------

    def act(self, act: AuditEvent) -> None:
        """Ignore callers' actions: they are requests, which have their own spans."""

    def event(self, session_id: str, owner: str, event: Event) -> None:
        at = int(event.at * 1e9)
        if isinstance(event, TurnStarted):
            self._begin(session_id, owner, event, at)
            return
        turn = self._turns.get(session_id)
        if turn is None:
            return
        match event:
            case Message(raw=raw):
                self._message(turn, raw, at)
            case QuestionOpened(question=question) if len(turn.questions) < _MAX_OPEN:
                asked = {"claude_code.question.kind": str(question.kind)}
                asked["gen_ai.tool.name"] = self._name(question.tool_name)
                turn.questions[question.id] = self._child(turn, "question", at, asked)
            case QuestionSettled(question=question, resolution=resolution):
                self._settled(turn, question.id, resolution, at)
            case TurnEnded():
                self._end(session_id, owner, event, at)

    # -- a turn ---------------------------------------------------------------------------------------------------

    def _begin(self, session_id: str, owner: str, event: TurnStarted, at: int) -> None:
        before = self._turns.pop(session_id, None)
        if before is not None:
            _end_all(before)
            before.span.end(at)
        attributes: dict[str, str | int] = {
            **_PROVIDER,
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "claude-code",
            "gen_ai.conversation.id": session_id,
            "enduser.id": self._name(owner),
            "claude_code.turn": event.number,
        }
        # A turn begins while the request that brought its message is answered; its span is the current one.
        name = "invoke_agent claude-code"
        self._turns[session_id] = _Turn(self._tracer.start_span(name, attributes=attributes, start_time=at), at)

    def _message(self, turn: _Turn, raw: Mapping[str, Any], at: int) -> None:
        """Handle a conversation frame. Frames of a subagent belong to the tool call that started it."""
        message = raw.get("message")
        if not isinstance(message, dict) or raw.get("parent_tool_use_id"):
            return
        blocks = message.get("content")
        blocks = [block for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
        if raw.get("type") == "assistant":
            self._answering(turn, message, at)
            for block in blocks:
                if block.get("type") == "tool_use" and len(turn.tools) < _MAX_OPEN:
                    name = self._name(block.get("name"))
                    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
                    turn.tools[str(block.get("id"))] = self._child(turn, f"execute_tool {name}", at, attributes)
        elif raw.get("type") == "user":
            _end_chat(turn)
            turn.since = at
            for block in blocks:
                span = turn.tools.pop(str(block.get("tool_use_id")), None)
                if span is not None:
                    if block.get("is_error") is True:
                        span.set_attribute("error.type", "tool_error")
                        span.set_status(StatusCode.ERROR)
                    span.end(at)

    def _answering(self, turn: _Turn, message: Mapping[str, Any], at: int) -> None:
        """Handle a fragment of a model response. The first opens its span, from when the model got its input."""
        answer_id, model = str(message.get("id")), self._name(message.get("model"))
        if turn.chat is None or turn.chat[0] != answer_id:
            _end_chat(turn)
            attributes = {**_PROVIDER, "gen_ai.operation.name": "chat", "gen_ai.response.model": model}
            span = self._child(turn, f"chat {model}", turn.since, attributes, SpanKind.CLIENT)
        else:
            span = turn.chat[1]
        usage = message.get("usage")
        for name, tokens in usage.items() if isinstance(usage, dict) else ():
            if name in ("input_tokens", "output_tokens") and isinstance(tokens, int):
                span.set_attribute(f"gen_ai.usage.{name}", tokens)
        turn.chat = answer_id, span, at

    def _settled(self, turn: _Turn, question_id: str, resolution: Any, at: int) -> None:
        decision = "none" if resolution.answer is None else "allow" if resolution.answer.allow else "deny"
        self._decisions.add(1, {"claude_code.decision": decision, "claude_code.closure": str(resolution.closure)})
        span = turn.questions.pop(question_id, None)
        if span is not None:
            span.set_attributes({"claude_code.decision": decision, "claude_code.closure": str(resolution.closure)})
            span.end(at)

    def _end(self, session_id: str, owner: str, event: TurnEnded, at: int) -> None:
        turn = self._turns.pop(session_id)
        _end_all(turn)
        outcome = event.outcome
        total = outcome.usage.total
        turn.span.set_attributes(
            {
                "claude_code.outcome": str(outcome.code),
                "claude_code.cost_usd": outcome.usage.cost_usd,
                "gen_ai.usage.input_tokens": total.input_tokens,
                "gen_ai.usage.output_tokens": total.output_tokens,
            }
        )
        if not outcome.ok:
            turn.span.set_attribute("error.type", str(outcome.code))
            turn.span.set_status(StatusCode.ERROR)
        begun = getattr(turn.span, "start_time", None)
        turn.span.end(at)
        attributes = {**_PROVIDER, "gen_ai.operation.name": "invoke_agent"}
        if isinstance(begun, int):
            self._duration.record((at - begun) / 1e9, {**attributes, "claude_code.outcome": str(outcome.code)})
        self._count(owner, outcome.usage, attributes)

    def _count(self, owner: str, usage: Usage, attributes: Mapping[str, str]) -> None:
        for model, used in usage.models.items():
            named = {**attributes, "gen_ai.response.model": self._label("model", model)}
            self._cost.add(max(0.0, used.cost_usd), {**named, "enduser.id": self._label("caller", owner)})
            for kind, tokens in (("input", used.input_tokens), ("output", used.output_tokens)):
                self._tokens.record(tokens, {**named, "gen_ai.token.type": kind})

    # -- spans ----------------------------------------------------------------------------------------------------

    def _child(
        self, turn: _Turn, name: str, at: int, attributes: Mapping[str, Any], kind: SpanKind = SpanKind.INTERNAL
    ) -> Span:
        context = trace.set_span_in_context(turn.span)
        return self._tracer.start_span(name, context, kind, attributes, start_time=at)

    def _name(self, value: object) -> str:
        return cut(self._redact(str(value)), _MAX_NAME)

    def _label(self, kind: str, value: str) -> str:
        """The label of a value in metrics: `other` after the first hundred values."""
        known = self._labels[kind]
        if value not in known and len(known) >= _MAX_LABELS:
            return "other"
        known.add(value)
        return self._name(value)


def _end_chat(turn: _Turn) -> None:
    if turn.chat is not None:
        turn.chat[1].end(turn.chat[2])
        turn.chat = None


def _end_all(turn: _Turn) -> None:
    """End the open spans of a turn that ends: interrupted tool calls and unanswered questions."""
    _end_chat(turn)
    for span in (*turn.tools.values(), *turn.questions.values()):
        span.end()
    turn.tools.clear()
    turn.questions.clear()


# -- telemetry logs ---------------------------------------------------------------------------------------------------


_PACKAGE = __name__.partition(".")[0]
_MAX_LENGTH = 16 << 10
_SEVERITIES = {
    logging.DEBUG: SeverityNumber.DEBUG,
    logging.INFO: SeverityNumber.INFO,
    logging.WARNING: SeverityNumber.WARN,
    logging.ERROR: SeverityNumber.ERROR,
    logging.CRITICAL: SeverityNumber.FATAL,
}


class TelemetryLogs(logging.Handler):
    """Exports the log records of this package until it is closed. Records of other packages are left out, because the
    exporter's own records would be exported in turn."""

    def __init__(self, resource: Resource, redact: Callable[[str], str]) -> None:
        super().__init__()
        self._provider = LoggerProvider(resource)
        self._provider.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
        self._logger = self._provider.get_logger(_PACKAGE, __version__)
        self._redact = redact
        logging.getLogger(_PACKAGE).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._logger.emit(
                timestamp=int(record.created * 1e9),
                context=get_current(),
                severity_text=record.levelname,
                severity_number=_SEVERITIES.get(record.levelno, SeverityNumber.UNSPECIFIED),
                # Redacted before it is cut: a truncated secret could not be recognized.
                body=cut(self._redact(self.format(record)), _MAX_LENGTH),
                attributes={"log.logger": record.name},
            )
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Flush and shut down; blocks until everything is sent or has failed."""
        logging.getLogger(_PACKAGE).removeHandler(self)
        self._provider.shutdown()
        super().close()
