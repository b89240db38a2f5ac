"""Session events, as the log keeps them and subscribers see them, and audit events, from which the audit trail is
written.

The log gives every event an increasing sequence number and a time (Unix seconds). Frames of the CLI that this version
does not know pass through as `Message` with their raw content, so nothing is lost.
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
"""How many characters of a text the log keeps if the event is too large."""
_IDENTIFYING = ("type", "subtype", "uuid", "session_id")


@dataclass(slots=True, kw_only=True)
class Event:
    """Base class of all events. `size` is roughly the number of bytes in it."""

    kept_in_part: ClassVar[bool] = False
    """Whether the log keeps the value of `kept` instead of the event, whatever its size."""
    seq: int = 0
    at: float = 0.0
    size: int = 0

    def kept(self) -> "Event":
        """The form in which the log keeps an event that is `kept_in_part`."""
        return self

    def shortened(self) -> "Event":
        """The form in which the log keeps an event that is too large. Most kinds never are."""
        return self


@dataclass(slots=True)
class StateChanged(Event):
    """The session moved to another state; `detail` gives the reason unless the state implies it."""

    state: State
    detail: str = ""


@dataclass(slots=True)
class Message(Event):
    """A whole frame of the CLI (assistant, user, system, result or unknown), unchanged."""

    raw: Mapping[str, Any]

    @property
    def type(self) -> str:
        return str(self.raw.get("type", "unknown"))

    def shortened(self) -> "Message":
        kept = {name: cut(str(self.raw[name]), _MAX_TEXT) for name in _IDENTIFYING if name in self.raw}
        return Message({**kept, "omitted_bytes": self.size}, seq=self.seq, at=self.at)


@dataclass(slots=True)
class Partial(Event):
    """A fragment of a message that is still being written. The log merges adjacent fragments of a block."""

    text: str
    kind: str = "text"
    raw: Mapping[str, Any] | None = None


@dataclass(slots=True)
class PartialRun(Event):
    """Adjacent fragments in one log entry; `first` is the number of the first, `seq` of the last."""

    first: int
    kind: str = "text"
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.parts)


@dataclass(slots=True)
class Output(Event):
    """One readable line: a line of Claude's text, a tool call, its progress, or its result."""

    line: str
    kind: str = "text"

    def shortened(self) -> "Output":
        line = cut(self.line, _MAX_TEXT)
        return Output(line, self.kind, seq=self.seq, at=self.at, size=len(line))


@dataclass(slots=True)
class QuestionOpened(Event):
    """A question was opened. Subscribers get all of it. The log keeps only `Question.brief`, because the broker holds
    open questions and closed ones need no more."""

    kept_in_part: ClassVar[bool] = True
    question: Question

    def __post_init__(self) -> None:
        self.size = _text_size(self.question.tool_input)

    def kept(self) -> "QuestionOpened":
        return QuestionOpened(self.question.brief(), seq=self.seq, at=self.at)


@dataclass(slots=True)
class QuestionSettled(Event):
    """A question was answered, expired or was withdrawn. The log keeps its id, the decision and who made it."""

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
    """Whether this message was sent again because a usage limit had stopped it."""

    def shortened(self) -> "TurnStarted":
        prompt = cut(self.prompt, _MAX_TEXT)
        return replace(self, prompt=prompt, size=len(prompt))


@dataclass(slots=True)
class MessageQueued(Event):
    """A message was accepted during a turn. It joins that turn (MessageJoined), begins the next one (TurnStarted), or
    never runs (MessageDropped)."""

    message_id: str
    text: str
    images: int = 0

    def __post_init__(self) -> None:
        self.size = len(self.text)

    def shortened(self) -> "MessageQueued":
        return MessageQueued(self.message_id, cut(self.text, _MAX_TEXT), self.images, seq=self.seq, at=self.at)


@dataclass(slots=True)
class MessageDropped(Event):
    """A queued message was withdrawn, or dropped together with the turn before it: it never runs."""

    message_id: str


@dataclass(slots=True)
class MessageJoined(Event):
    """A message sent during a turn joined it, at this place in the conversation."""

    message_id: str
    text: str

    def __post_init__(self) -> None:
        self.size = len(self.text)

    def shortened(self) -> "MessageJoined":
        return MessageJoined(self.message_id, cut(self.text, _MAX_TEXT), seq=self.seq, at=self.at)


@dataclass(slots=True)
class TurnEnded(Event):
    """A turn ended."""

    number: int
    outcome: Outcome

    def __post_init__(self) -> None:
        outcome = self.outcome
        self.size = len(outcome.result) + len(outcome.detail) + _text_size(outcome.structured_output)
        self.size += _text_size(outcome.permission_denials)


@dataclass(slots=True)
class Spent(Event):
    """The cost of a turn that the CLI reported after the turn's outcome was recorded, so the outcome lacks it."""

    usage: Usage


@dataclass(slots=True)
class BudgetWarned(Event):
    """The last turn brought spending close to a budget. Reported once per month or day, by the session whose cost
    crossed the threshold."""

    line: str


@dataclass(slots=True)
class Retrying(Event):
    """The API refused a request or failed, and the CLI will retry."""

    attempt: int
    of: int | None
    delay_ms: float
    status: int | None
    detail: str = ""


@dataclass(slots=True)
class UsageReported(Event):
    """Claude Code reported the plan's limits and how much of them is used."""

    plan: PlanUsage


@dataclass(slots=True)
class WaitChanged(Event):
    """A usage limit stopped the session, or no longer does (None), or the time at which it continues has changed."""

    wait: LimitWait | None
    stopped: bool = False
    """Whether a turn has just ended at the limit."""


@dataclass(slots=True)
class Stalled(Event):
    """No frame arrived for `seconds`. The turn continues; the next frame ends the stall."""

    seconds: float


@dataclass(slots=True)
class ProcessChanged(Event):
    """The Claude Code process `started`, was `parked` (closed but resumable), `ended` on its own, or was stopped for a
    `protocol_violation`, a frame that cannot be true; see `detail`."""

    change: str
    pid: int | None = None
    detail: str = ""


@dataclass(slots=True)
class Noise(Event):
    """A line of the CLI that was not valid JSON, or too long to keep."""

    text: str


@dataclass(slots=True)
class Gap(Event):
    """Events `first` to `seq` are lost because the log or a slow subscriber's queue was full."""

    first: int


def _text_size(value: object) -> int:
    """The length of all text in a JSON value, which is nearly all of its size."""
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
    """Refused by the policy, by a limit, or because the session belongs to another caller."""
    FAILED = "failed"
    """A call ended in an error, for any reason. For counting; a refusal also has its own event."""
    CALL_DENIED = "call_denied"
    """The policy denied a tool call of a session, by a rule or because the call could not be judged."""
    BYPASS_SWITCHED = "bypass_switched"
    SESSION_MANAGED = "session_managed"
    """A session on disk was renamed, tagged, pinned, archived, forked, exported or deleted."""
    SESSION_SHARED = "session_shared"
    """The owner shared a session with a person or a group; the details have the access."""
    SESSION_UNSHARED = "session_unshared"
    BUDGET_WARNED = "budget_warned"
    """80 % of the budget of a person or a group is spent. Reported once per month or day; `who` is the last spender."""
    HUB_STEERED = "hub_steered"
    """A shared MCP server was reconnected, enabled or disabled, or a sign-in to it was begun."""
    HUB_CALLED = "hub_called"
    """A client called a tool of a shared MCP server, or was refused. `arguments` in the details are complete."""
    AUTH_FAILED = "auth_failed"
    CALLERS_CHANGED = "callers_changed"
    """The tokens file changed: callers were added or removed, have another token, or must wait for a restart."""
    CALLER_ENDED = "caller_ended"
    """Everything that a caller had open was ended because their token is no longer valid."""
    TOKENS_UNUSABLE = "tokens_unusable"
    """The tokens file changed and cannot be used: none of its callers is admitted."""
    NETWORK_REFUSED = "network_refused"
    """A session asked its sandbox's proxy for a host that it may not reach. Equal requests are counted together."""
    CREDENTIAL_USED = "credential_used"
    """The proxy added a credential to a request of a session. Equal requests are counted together."""
    SIGNED_IN = "signed_in"
    """A sign-in to the console; the details have the device."""
    SIGNED_OUT = "signed_out"
    """A sign-out from the console: one device, all devices, or another device of the same person."""
    TICKET_GIVEN = "ticket_given"
    """A link for one sign-in was created."""
    CLIENT_ALLOWED = "client_allowed"
    """A person allowed a client to act in their name, at the embedded authorization server."""
    PASSKEY_ADDED = "passkey_added"
    """A person created a passkey with an invitation link."""
    GRANT_STOLEN = "grant_stolen"
    """A code or refresh token was used twice: all tokens of that consent are revoked."""
    PUSH_CHANGED = "push_changed"
    """A principal changed where and when they get notifications."""


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
"""The audit events after which a list of sessions looks different."""


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """Who did what, to which session. `details` depend on the kind; a prompt in them is complete."""

    kind: AuditKind
    who: str
    session_id: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


def ends_text(event: Event) -> bool:
    """Whether the text before this event is complete. Some events may occur between fragments: output lines, reports,
    messages of subagents."""
    match event:
        case Message():
            return event.type in ("assistant", "user", "result") and event.raw.get("parent_tool_use_id") is None
        case TurnStarted() | TurnEnded() | Gap():
            return True
    return False
