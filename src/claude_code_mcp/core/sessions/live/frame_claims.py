"""Decides which frames of a Claude Code process are plausible and may have an effect. Pure.

A frame is a claim: any command of a session may find a way to write to the output of its CLI. So a frame takes effect
only if it agrees with what the server knows: the messages, requests and answers that it sent, whether a turn is
running, and earlier frames. An impossible frame ends the process (`FalseClaim`).

| frame | accepted if | otherwise |
| --- | --- | --- |
| `init`, `result` | it has the session's id or, after a `/clear` that was sent, a new and unused one | process ended |
| `conversation_reset` | a `/clear` was sent before | process ended |
| `result` | it is the first in a running turn, its amounts are possible and its totals do not shrink | process ended |
| `assistant`, `user` of the main conversation | a turn is running | process ended |
| these and `result`, late, after a turn that the server interrupted | always | only the costs count |
| `control_request` | its id is new, and few requests are open | process ended |
| `control_response` | it answers a request that was sent | process ended; a repeated or late answer is ignored |
| `control_cancel_request` | always | ignored if no request has its id |
| call of an MCP tool | its tool use was allowed: id, name, input | checked (`CallClaim`); process ended if denied |
| `transcript_mirror` | it has entries of its own conversation (`transcript_mirror.py`) | ignored |
| all others, including unknown types | always: they affect only the display | |
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ...claude.protocol import ControlRequest, ControlResponse, Conversation, Frame, Other, Result, System
from ...model.session_id import is_session_id
from ...model.tool_names import PREFIX
from ...model.usage import Totals, Usage, impossible_amount
from ...policy.admission import slash_command

_CLEARING = frozenset({"clear", "reset", "new"})
"""The commands with which Claude Code starts another conversation in the same process."""
_MAX_OPEN_REQUESTS = 1000
_REQUESTS_KEPT = 10_000
_USES_KEPT = 2000
_USE_ID = "claudecode/toolUseId"
"""The key in `_meta` under which every CLI since 2.1.0 names the tool use of a `tools/call`."""


class FalseClaim(Exception):
    """A frame that the process had no reason to write. The text says what it claims, without its contents."""


class CallClaim(StrEnum):
    """What is known about the tool use that a call of an MCP tool refers to."""

    ALLOWED = "allowed"
    """A question about exactly this call was allowed, and the call has not run yet."""
    ANNOUNCED = "announced"
    """The conversation contains exactly this call; who allowed it is unknown here."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ClaimContext:
    """What the session knows when a frame arrives."""

    in_turn: bool
    """Whether a turn is running."""
    after_interruption: bool
    """Whether no turn is running because the session ended it, and the process may still be sending its frames."""
    open_requests: int
    """How many requests of the process are waiting for an answer, including this one."""
    why_taken: Callable[[str], str | None]
    """Returns why a session cannot continue under an id; None if the id is new and free."""


@dataclass(slots=True)
class _ToolUse:
    """A use of an MCP tool, as known from frames and answers."""

    name: str
    digest: bytes | None
    """The digest of the input that it may be called with."""
    announced: bool = False
    allowed: bool = False
    """Whether it was allowed and not yet called since."""
    denied: bool = False


class FrameClaims:
    """Checks the frames of one process, in order of arrival."""

    def __init__(self, session_id: str, used: Usage | None = None) -> None:
        """`used` is the earlier usage of the conversation that the process continues."""
        self.session_id = session_id
        """The conversation that the process writes, according to accepted frames."""
        self._former: set[str] = set()
        self._clearings: dict[str, None] = {}
        """Messages sent to clear the conversation whose effect has not been seen."""
        self._totals = Totals(used or Usage())
        self._requests: OrderedDict[str, None] = OrderedDict()
        self._uses: OrderedDict[str, _ToolUse] = OrderedDict()

    # -- what the server has sent ---------------------------------------------------------------------------------

    def message_sent(self, message_id: str, text: str) -> None:
        if slash_command(text) in _CLEARING:
            self._clearings[message_id] = None

    def use_answered(self, use_id: str | None, name: str, tool_input: Mapping[str, Any] | None) -> None:
        """Note the answer to a question about the use of an MCP tool: the input that it may run with, or None if it was
        denied."""
        if use_id is None:
            return
        use = self._use(use_id, name)
        use.allowed, use.denied = tool_input is not None, tool_input is None
        if tool_input is not None:
            use.name, use.digest = name, _digest(tool_input)

    def call_failed(self, params: Mapping[str, Any]) -> None:
        """Note that an allowed call had no result: Claude Code may repeat it, for instance after a sign-in."""
        use = self._uses.get(_use_id(params) or "")
        if use is not None and not use.denied:
            use.allowed = True

    # -- checking a frame -----------------------------------------------------------------------------------------

    def check(self, frame: Frame, context: ClaimContext) -> bool:
        """Whether the frame may have an effect; FalseClaim if it is impossible. Fills in the usage of a result and
        updates `session_id` when the conversation changes."""
        match frame:
            case Result():
                return self._check_result(frame, context)
            case Conversation():
                return self._check_conversation(frame, context)
            case System() if frame.subtype == "init":
                self._check_id(frame, context)
            case Other() if frame.raw.get("type") == "conversation_reset" and not self._clearings:
                raise FalseClaim("the conversation was replaced without a request")
            case ControlRequest():
                self._check_request(frame, context)
            case ControlResponse():
                # Answers to sent requests, including late and repeated ones, are handled before this.
                raise FalseClaim("an answer to a request that was never sent")
        return True

    def late_usage(self, frame: Result) -> Usage:
        """The usage in a result of a process that is being closed; empty if it is impossible."""
        try:
            return self._used(frame)
        except FalseClaim:
            return Usage()

    def _check_result(self, frame: Result, context: ClaimContext) -> bool:
        named = frame.raw.get("session_id")
        if isinstance(named, str) and named not in {self.session_id, *self._former} and is_session_id(named):
            raise FalseClaim("a result of another session")
        frame.usage = self._used(frame)
        for message_id in frame.message_ids:
            self._clearings.pop(message_id, None)  # one that has not cleared the conversation by now never will
        if not context.in_turn and not context.after_interruption:
            raise FalseClaim("a result while no turn is running")
        return context.in_turn

    def _used(self, frame: Result) -> Usage:
        flaw = impossible_amount(frame.raw)
        if flaw is not None:
            raise FalseClaim(f"a result with an impossible amount: {flaw}")
        if self._totals.shrink(frame.raw):
            raise FalseClaim("a result with smaller totals than the previous one")
        return self._totals.used_by(frame.raw)

    def _check_conversation(self, frame: Conversation, context: ClaimContext) -> bool:
        if frame.role == "assistant":
            for block in frame.content:
                if block.get("type") == "tool_use" and str(block.get("name")).startswith(PREFIX):
                    name = str(block["name"])
                    use = self._use(str(block.get("id")), name)
                    if not (use.allowed or use.denied):  # an answer takes precedence over the announced input
                        use.name, use.digest, use.announced = name, _digest(block.get("input")), True
        if frame.from_subagent or context.in_turn:  # background subagents continue without a turn
            return True
        # A request such as a model change makes Claude Code write a user message between two turns.
        if not context.after_interruption and frame.role != "user":
            raise FalseClaim(f"a message of the conversation ({frame.role}) while no turn is running")
        return False

    def _check_id(self, frame: System, context: ClaimContext) -> None:
        named = frame.raw.get("session_id")
        if not isinstance(named, str) or named == self.session_id or not is_session_id(named):
            return
        if not self._clearings:
            raise FalseClaim("another session's id, without a request to clear the conversation")
        taken = context.why_taken(named)
        if taken is not None:
            raise FalseClaim(f"another session's id: {taken}")
        # One new conversation for each `/clear` sent.
        self._clearings.pop(next(iter(self._clearings)))
        self._former.add(self.session_id)
        self.session_id = named
        self._totals = Totals()  # the CLI restarts its counts

    def _check_request(self, frame: ControlRequest, context: ClaimContext) -> None:
        if frame.id in self._requests:
            raise FalseClaim("a request with the id of an earlier one")
        if context.open_requests > _MAX_OPEN_REQUESTS:
            raise FalseClaim(f"more than {_MAX_OPEN_REQUESTS} requests at once")
        self._requests[frame.id] = None
        if len(self._requests) > _REQUESTS_KEPT:
            self._requests.popitem(last=False)

    # -- calls of MCP tools ---------------------------------------------------------------------------------------

    def call_claimed(self, name: str, params: Mapping[str, Any]) -> CallClaim:
        """What is known about a call of `mcp__server__tool` before it runs; FalseClaim if it was denied. An allowed use
        is consumed."""
        use = self._uses.get(_use_id(params) or "")
        if use is None:
            return CallClaim.UNKNOWN
        if use.denied:
            raise FalseClaim(f"a call of {name[:200]} that was denied")
        arguments = params.get("arguments")
        if use.name != name or use.digest is None or use.digest != _digest({} if arguments is None else arguments):
            return CallClaim.UNKNOWN
        if use.allowed:
            use.allowed = False
            return CallClaim.ALLOWED
        return CallClaim.ANNOUNCED if use.announced else CallClaim.UNKNOWN

    def _use(self, use_id: str, name: str) -> _ToolUse:
        use = self._uses.setdefault(use_id, _ToolUse(name, None))
        self._uses.move_to_end(use_id)
        if len(self._uses) > _USES_KEPT:
            self._uses.popitem(last=False)
        return use


def _use_id(params: Mapping[str, Any]) -> str | None:
    meta = params.get("_meta")
    use_id = meta.get(_USE_ID) if isinstance(meta, Mapping) else None
    return use_id if isinstance(use_id, str) else None


def _digest(value: object) -> bytes | None:
    """A digest that is equal for inputs that Claude Code cannot distinguish: it has only one number type. None if the
    value cannot be encoded as JSON."""
    try:
        text = json.dumps(_normal(value), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()


def _normal(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _normal(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_normal(part) for part in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
