"""How a turn ended, read from the result that Claude Code reports."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from .states import State
from .usage import ModelUsage, Usage, read_number, read_usage


class OutcomeCode(StrEnum):
    """How a turn ended, for programs. Only `COMPLETED` is a success."""

    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    MAX_TURNS = "max_turns"
    MAX_BUDGET = "max_budget"
    API_ERROR = "api_error"
    LIMIT_REACHED = "limit_reached"
    """A usage limit of the plan, or the rate limit of an API key (429)."""
    STRUCTURED_OUTPUT_MISSING = "structured_output_missing"
    EXECUTION_ERROR = "execution_error"
    CRASHED = "crashed"
    START_FAILED = "start_failed"
    NOT_SAVED = "not_saved"
    """The turn ran to its end, but its answer could not be written to the transcript: the next process will not know
    it."""
    PROTOCOL_VIOLATION = "protocol_violation"
    """The process wrote a frame that cannot be true, and was stopped. A command of the session may have written it."""
    MACHINE_LOST = "machine_lost"
    """The fleet's machine that ran the turn is gone or was disconnected and lost the session, which continues on
    another one. The turn may have done part of its work."""
    DROPPED = "dropped"
    """Of a message, never of a turn: an interruption came before it ran, and it never will."""


_STATE_AFTER = {
    OutcomeCode.COMPLETED: State.IDLE,
    OutcomeCode.INTERRUPTED: State.INTERRUPTED,
    OutcomeCode.CANCELLED: State.CANCELLED,
    OutcomeCode.MACHINE_LOST: State.INTERRUPTED,
    OutcomeCode.DROPPED: State.INTERRUPTED,
    OutcomeCode.LIMIT_REACHED: State.LIMITED,
}
LOG_IN_HINT = (
    "(On the server's machine run `claude-code-mcp claude auth login`, or set ANTHROPIC_API_KEY in the server's "
    "environment; many clients take it from `env` in the server's entry. `claude-code-mcp doctor` checks both.)"
)
"""Replaces Claude Code's hint to use one of its terminal's commands."""
_SUBTYPE_CODES = {
    "error_max_turns": OutcomeCode.MAX_TURNS,
    "error_max_budget_usd": OutcomeCode.MAX_BUDGET,
    "error_max_structured_output_retries": OutcomeCode.STRUCTURED_OUTPUT_MISSING,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a turn. `result` is the final text, `detail` explains a failure."""

    code: OutcomeCode
    result: str = ""
    detail: str = ""
    subtype: str | None = None
    terminal_reason: str | None = None
    api_status: int | None = None
    stop_reason: str | None = None
    structured_output: Any = None
    usage: Usage = field(default_factory=Usage)
    raw_usage: Mapping[str, Any] = field(default_factory=dict)
    num_turns: int = 0
    duration_ms: int = 0
    duration_api_ms: int = 0
    permission_denials: tuple[Mapping[str, Any], ...] = ()
    exit_code: int | None = None
    error_code: str | None = None
    limit_type: str | None = None
    """The usage limit that ended it, such as `five_hour`."""
    resets_at: float | None = None
    """When that limit resets, if known."""

    @property
    def ok(self) -> bool:
        return self.code is OutcomeCode.COMPLETED

    @property
    def final_text(self) -> str:
        """The result. Without a login it is `detail`, which repeats the CLI's sentence and adds what to do on a
        server."""
        return self.detail if self.result and self.detail.startswith(self.result) else self.result

    @property
    def state(self) -> State:
        """The session's state after this outcome."""
        return _STATE_AFTER.get(self.code, State.ERROR)


_DENIALS = frozenset(
    {"user-rejected", "permission-rule", "automode-blocked", "automode-unavailable", "automode-parsing-error"}
)
"""How Claude Code records that a call was denied, without the messages for interrupted calls."""
_ERROR_TAG, _ERROR_END = "<tool_use_error>", "</tool_use_error>"
CallStatus = Literal["ok", "error", "denied"]


def call_statuses(line: Mapping[str, Any]) -> dict[str, CallStatus]:
    """The status of the calls whose results are in a line of a transcript or a frame of the stream, by call id. A call
    that was denied by a person, a rule or a timeout is denied, not failed. Early versions do not record this; there it
    is an error."""
    message, facts = line.get("message"), line.get("tool_result_meta")
    content = message.get("content") if isinstance(message, Mapping) else None
    blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
    # A frame says it of each call, a line of the transcript of all that it has, which is one.
    kinds = {
        str(fact.get("id")): fact.get("non_execution_kind")
        for fact in (facts if isinstance(facts, list) else ())
        if isinstance(fact, Mapping)
    }
    found: dict[str, CallStatus] = {}
    for block in blocks:
        if block.get("type") == "tool_result":
            call = str(block.get("tool_use_id"))
            kind = kinds.get(call, line.get("toolDenialKind"))
            denied = isinstance(kind, str) and kind in _DENIALS
            found[call] = "ok" if not block.get("is_error") else "denied" if denied else "error"
    return found


def without_error_tags(result: str, status: str) -> str:
    """The result of a call as people read it: Claude Code puts some errors in tags, for the model."""
    if status != "error" or not result.startswith(_ERROR_TAG):
        return result
    return result.removeprefix(_ERROR_TAG).rstrip().removesuffix(_ERROR_END)


def read_outcome(
    result: Mapping[str, Any],
    *,
    wants_structure: bool,
    interrupted: bool,
    usage: Usage | None = None,
    rate_limited: bool = False,
) -> Outcome:
    """Parse the outcome in a result frame of the CLI.

    `interrupted`: we asked for the interruption. `wants_structure`: a schema was set, so a success without structured
    output is a failure. `usage`: the usage of the turn, by default from the frame. `rate_limited`: the last answer of
    the turn reported a limit, because early CLIs give the result no status.

    Never raises: a result must always end its turn, so a field of an unexpected type counts as missing.
    """
    code = _read_code(result, wants_structure, interrupted, rate_limited)
    used = read_usage(result.get("model_usage_since_last_result")) if usage is None else usage
    return Outcome(
        code=code,
        result=_text(result, "result") or "",
        detail="" if code is OutcomeCode.COMPLETED else _detail(result, code),
        subtype=_text(result, "subtype"),
        terminal_reason=_text(result, "terminal_reason"),
        api_status=int(read_number(result, "api_error_status")) or None,
        stop_reason=_text(result, "stop_reason"),
        structured_output=result.get("structured_output"),
        usage=used,
        raw_usage=_complete_usage(_mapping(result, "usage"), used.total),
        num_turns=int(read_number(result, "num_turns")),
        duration_ms=int(read_number(result, "duration_ms")),
        duration_api_ms=int(read_number(result, "duration_api_ms")),
        permission_denials=tuple(denial for denial in _list(result, "permission_denials") if isinstance(denial, dict)),
    )


def _read_code(result: Mapping[str, Any], wants_structure: bool, interrupted: bool, rate_limited: bool) -> OutcomeCode:
    subtype, failed = str(result.get("subtype")), bool(result.get("is_error"))
    if subtype in _SUBTYPE_CODES:
        return _SUBTYPE_CODES[subtype]
    # Early CLIs give an interrupted turn neither a reason nor `is_error`, only this subtype.
    aborted = interrupted and (failed or subtype == "error_during_execution")
    if str(result.get("terminal_reason")).startswith("aborted") or aborted:
        return OutcomeCode.INTERRUPTED
    limited = failed and (rate_limited or result.get("api_error_status") == 429)
    if limited or result.get("terminal_reason") == "api_error" or result.get("api_error_status"):
        return OutcomeCode.LIMIT_REACHED if limited else OutcomeCode.API_ERROR
    if failed or subtype != "success":
        return OutcomeCode.EXECUTION_ERROR
    if wants_structure and result.get("structured_output") is None:
        return OutcomeCode.STRUCTURED_OUTPUT_MISSING
    return OutcomeCode.COMPLETED


def _complete_usage(raw: Mapping[str, Any], used: ModelUsage) -> Mapping[str, Any]:
    """The `usage` of a result, with the tokens of its usage by model if it has any. Claude Code fills `usage` when an
    answer returns to its main loop: it is zero at a stop for the budget, and never includes subagents. The usage by
    model includes every answer and determines the cost."""
    tokens = {
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "cache_read_input_tokens": used.cache_read_tokens,
        "cache_creation_input_tokens": used.cache_creation_tokens,
    }
    if not any(tokens.values()):
        return raw
    return {**raw, **{name: count for name, count in tokens.items() if count != raw.get(name, 0)}}


def _detail(result: Mapping[str, Any], code: OutcomeCode) -> str:
    errors = [str(error) for error in _list(result, "errors") if not str(error).startswith("[ede_diagnostic]")]
    if errors:
        return "; ".join(errors)
    if code is OutcomeCode.INTERRUPTED:
        return "The turn was interrupted."
    if code is OutcomeCode.STRUCTURED_OUTPUT_MISSING:
        return "The model finished without the requested structured output."
    reason = _text(result, "result") or "Claude Code reported an error without details."
    return f"{reason} {LOG_IN_HINT}" if code is OutcomeCode.API_ERROR and "/login" in reason else reason


def _text(result: Mapping[str, Any], key: str) -> str | None:
    value = result.get(key)
    return value if isinstance(value, str) else None


def _list(result: Mapping[str, Any], key: str) -> list[Any]:
    value = result.get(key)
    return value if isinstance(value, list) else []


def _mapping(result: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = result.get(key)
    return value if isinstance(value, dict) else {}
