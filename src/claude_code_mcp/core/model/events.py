"""What happens: the events of a session, as its log keeps them and subscribers see them, and the acts of callers, from
which the audit trail is written.

The log gives every event a sequence number that only grows, and the time (Unix seconds). Frames of the CLI
that this version has no name for pass through as `Message` with their raw content, so nothing is lost.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar

from .outcome import Outcome
from .question import Question, Resolution
from .states import State
from .text import cut, json_parts
from .usage import Usage
from .usage_limits import LimitWait, PlanUsage

_MAX_TEXT = 2000
"""Characters of a text that a log keeps of an event that is too large."""
_IDENTIFYING = ("type", "subtype", "uuid", "session_id")


@dataclass(slots=True, kw_only=True)
class Event:
    """The common part of all events. `size` is roughly the number of bytes that it carries."""

    kept_in_part: ClassVar[bool] = False
    """Whether a log keeps what `kept` returns in the place of the event, whatever its size."""
    seq: int = 0
    at: float = 0.0
    size: int = 0

    def kept(self) -> "Event":
        """What a log keeps of an event that is `kept_in_part`."""
        return self

    def shortened(self) -> "Event":
        """The event as a log keeps it when it is too large; most kinds never are."""
        return self


@dataclass(slots=True)
class StateChanged(Event):
    """The session moved to another state; `detail` says why when that is not plain from the state."""

    state: State
    detail: str = ""


@dataclass(slots=True)
class Message(Event):
    """A whole frame of the CLI (assistant, user, system, result or one unknown to us), as it came."""

    raw: Mapping[str, Any]

    @property
    def type(self) -> str:
        return str(self.raw.get("type", "unknown"))

    def shortened(self) -> "Message":
        kept = {name: cut(str(self.raw[name]), _MAX_TEXT) for name in _IDENTIFYING if name in self.raw}
        return Message({**kept, "omitted_bytes": self.size}, seq=self.seq, at=self.at)


@dataclass(slots=True)
class Partial(Event):
    """A fragment of a message that is still being written. The log merges neighbours of the same block."""

    text: str
    kind: str = "text"
    raw: Mapping[str, Any] | None = None


@dataclass(slots=True)
class PartialRun(Event):
    """Neighbouring fragments in one log entry; `first` is the number of the first, `seq` of the last."""

    first: int
    kind: str = "text"
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.parts)


@dataclass(slots=True)
class Output(Event):
    """One readable line: a line of Claude's text, a tool call, its progress, or its outcome."""

    line: str
    kind: str = "text"

    def shortened(self) -> "Output":
        line = cut(self.line, _MAX_TEXT)
        return Output(line, self.kind, seq=self.seq, at=self.at, size=len(line))


@dataclass(slots=True)
class QuestionOpened(Event):
    """The session waits for an answer to this question.

    Subscribers get it whole. The log keeps `Question.brief` only: an open question is held by the broker, and of a
    closed one no more is needed.
    """

    kept_in_part: ClassVar[bool] = True
    question: Question

    def __post_init__(self) -> None:
        self.size = _text_size(self.question.tool_input)

    def kept(self) -> "QuestionOpened":
        return QuestionOpened(self.question.brief(), seq=self.seq, at=self.at)


@dataclass(slots=True)
class QuestionSettled(Event):
    """A question was answered, expired or was withdrawn. The log keeps which it was, the decision and who made it."""

    kept_in_part: ClassVar[bool] = True
    question: Question
    resolution: Resolution

    def kept(self) -> "QuestionSettled":
        resolution = self.resolution.brief()
        message = resolution.answer.message if resolution.answer is not None else None
        size = len(resolution.detail) + len(message or "")
        return QuestionSettled(self.question.brief(), resolution, seq=self.seq, at=self.at, size=size)

    def shortened(self) -> "QuestionSettled":
        answer = self.resolution.answer
        if answer is not None:
            answer = replace(answer, message=cut(answer.message, _MAX_TEXT) if answer.message else None)
        resolution = replace(self.resolution, answer=answer, detail=cut(self.resolution.detail, _MAX_TEXT))
        return QuestionSettled(self.question, resolution, seq=self.seq, at=self.at, size=2 * _MAX_TEXT)


@dataclass(slots=True)
class TurnStarted(Event):
    """A turn began; `number` counts from 1 over the session's time in this server."""

    number: int
    message_id: str
    prompt: str
    continues: bool = False
    """Whether its message was sent again because a usage limit had stopped it."""

    def shortened(self) -> "TurnStarted":
        prompt = cut(self.prompt, _MAX_TEXT)
        return replace(self, prompt=prompt, size=len(prompt))


@dataclass(slots=True)
class MessageQueued(Event):
    """A message was accepted while a turn runs. It is taken up by that turn (MessageJoined), begins the next one
    (TurnStarted), or never runs (MessageDropped)."""

    message_id: str
    text: str
    images: int = 0

    def __post_init__(self) -> None:
        self.size = len(self.text)

    def shortened(self) -> "MessageQueued":
        return MessageQueued(self.message_id, cut(self.text, _MAX_TEXT), self.images, seq=self.seq, at=self.at)


@dataclass(slots=True)
class MessageDropped(Event):
    """A message that waited behind a turn was taken back, or dropped with that turn: it never runs."""

    message_id: str


@dataclass(slots=True)
class MessageJoined(Event):
    """A message that was sent while a turn ran was taken up by it, at this place in the conversation."""

    message_id: str
    text: str

    def __post_init__(self) -> None:
        self.size = len(self.text)

    def shortened(self) -> "MessageJoined":
        return MessageJoined(self.message_id, cut(self.text, _MAX_TEXT), seq=self.seq, at=self.at)


@dataclass(slots=True)
class TurnEnded(Event):
    """A turn came to its outcome."""

    number: int
    outcome: Outcome

    def __post_init__(self) -> None:
        outcome = self.outcome
        self.size = len(outcome.result) + len(outcome.detail) + _text_size(outcome.structured_output)
        self.size += _text_size(outcome.permission_denials)


@dataclass(slots=True)
class Spent(Event):
    """The cost of a turn whose outcome was recorded before the CLI reported it, so that the outcome lacks it."""

    usage: Usage


@dataclass(slots=True)
class BudgetWarned(Event):
    """With the cost of the last turn, little is left of a budget that the session spends from; said once in a month or
    day, by the one session whose cost made it so."""

    line: str


@dataclass(slots=True)
class Retrying(Event):
    """The API refused or failed and the CLI will try again."""

    attempt: int
    of: int | None
    delay_ms: float
    status: int | None
    detail: str = ""


@dataclass(slots=True)
class UsageReported(Event):
    """Claude Code has reported the limits of the plan and how much of them is used."""

    plan: PlanUsage


@dataclass(slots=True)
class WaitChanged(Event):
    """A usage limit has stopped the session, or (None) no longer; or when it continues automatically has changed."""

    wait: LimitWait | None
    stopped: bool = False
    """Whether a turn has just ended at the limit."""


@dataclass(slots=True)
class Stalled(Event):
    """No frame came for `seconds`. The turn goes on; the next frame ends the stall."""

    seconds: float


@dataclass(slots=True)
class ProcessChanged(Event):
    """The Claude Code process `started`, was `parked` (closed but resumable), `ended` by itself, or was closed for a
    `protocol_violation`: it wrote a frame that cannot be true, as `detail` says."""

    change: str
    pid: int | None = None
    detail: str = ""


@dataclass(slots=True)
class Noise(Event):
    """A line of the CLI that was not valid JSON, or too long to keep."""

    text: str


@dataclass(slots=True)
class Gap(Event):
    """Events `first` to `seq` are lost: the log or a slow subscriber's queue was full."""

    first: int


def _text_size(value: object) -> int:
    """The length of all text in a JSON value: nearly all of its size."""
    return sum(len(part) for part in json_parts(value) if isinstance(part, str))


class AuditKind(StrEnum):
    SERVER_STARTED = "server_started"
    SERVER_STOPPED = "server_stopped"
    SESSION_CREATED = "session_created"
    SESSION_RESUMED = "session_resumed"
    SESSION_FORKED = "session_forked"
    MESSAGE_SENT = "message_sent"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    """By the policy, by a limit, or because the session belongs to another caller."""
    FAILED = "failed"
    """A call ended in an error, whatever the reason. For counting; a refusal has an event of its own besides."""
    CALL_DENIED = "call_denied"
    """The policy has denied a tool call of a session: by a rule, or because the call could not be judged."""
    BYPASS_SWITCHED = "bypass_switched"
    SESSION_MANAGED = "session_managed"
    """A session on disk was renamed, tagged, pinned, archived, forked, exported or deleted."""
    SESSION_SHARED = "session_shared"
    """By its owner, with a person or a group; the details say with whom and for what."""
    SESSION_UNSHARED = "session_unshared"
    BUDGET_WARNED = "budget_warned"
    """80 % of the budget of a person or a group is spent: said once in its month or day. `who` spent the last of it."""
    HUB_STEERED = "hub_steered"
    """A shared MCP server was reconnected, enabled or disabled, or a sign-in to it was begun."""
    HUB_CALLED = "hub_called"
    """A client called a tool of a shared MCP server, or was refused it. `arguments` in the details are whole."""
    AUTH_FAILED = "auth_failed"
    CALLERS_CHANGED = "callers_changed"
    """The tokens file has changed: who came, who went, who has another token, who must wait for a restart."""
    CALLER_ENDED = "caller_ended"
    """What a caller had open was ended, since its token counts no more."""
    TOKENS_UNUSABLE = "tokens_unusable"
    """The tokens file has changed and cannot be used: nobody in it is let in."""
    NETWORK_REFUSED = "network_refused"
    """A session asked the proxy of its sandbox for a host that it may not reach; equal ones are counted together."""
    CREDENTIAL_USED = "credential_used"
    """The proxy put a credential into a request of a session; equal ones are counted together."""
    SIGNED_IN = "signed_in"
    """At the console; the details have the device."""
    SIGNED_OUT = "signed_out"
    """At the console: one device or all, or the sign-in of another device was ended."""
    TICKET_GIVEN = "ticket_given"
    """A link with which somebody can sign in once."""
    CLIENT_ALLOWED = "client_allowed"
    """A person has allowed a client to work in their name, at the embedded authorization server."""
    PASSKEY_ADDED = "passkey_added"
    """A person has made a passkey with the link of an invitation."""
    GRANT_STOLEN = "grant_stolen"
    """A code or refresh token has come a second time: everything of that consent has ended."""
    PUSH_CHANGED = "push_changed"
    """Where and when a principal is told that a session needs somebody."""


LIST_CHANGES = frozenset(
    {
        AuditKind.SESSION_CREATED,
        AuditKind.SESSION_FORKED,
        AuditKind.SESSION_RESUMED,
        AuditKind.SESSION_MANAGED,
        AuditKind.SESSION_SHARED,
        AuditKind.SESSION_UNSHARED,
        AuditKind.CANCELLED,
    }
)
"""The acts after which a list of sessions reads differently."""


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """Who did what, to which session. `details` depend on the kind; a prompt in them is the whole text."""

    kind: AuditKind
    who: str
    session_id: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


def ends_text(event: Event) -> bool:
    """Whether the text that was being written before this event is complete. Other events may come between fragments:
    lines of output, reports, messages of subagents."""
    match event:
        case Message():
            return event.type in ("assistant", "user", "result") and event.raw.get("parent_tool_use_id") is None
        case TurnStarted() | TurnEnded() | Gap():
            return True
    return False
