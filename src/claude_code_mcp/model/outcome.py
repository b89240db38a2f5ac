"""The states of a session with their legal moves, and how a turn ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .usage import ModelUsage, Usage, read_number, read_usage


class State(StrEnum):
    """What a session is doing. Whether it has a live process is another matter, and not part of the state."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    IDLE = "idle"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    ERROR = "error"


BUSY = frozenset({State.STARTING, State.RUNNING, State.WAITING})
AT_REST = frozenset({State.IDLE, State.INTERRUPTED, State.ERROR})
FINAL = frozenset({State.CANCELLED})

_TURN_ENDS = AT_REST | FINAL
MOVES: dict[State, frozenset[State]] = {
    State.STARTING: frozenset({State.RUNNING}) | _TURN_ENDS,
    # From a turn whose process has crashed to the next one, for which another process starts.
    State.RUNNING: frozenset({State.WAITING, State.STARTING}) | _TURN_ENDS,
    State.WAITING: frozenset({State.RUNNING, State.STARTING}) | _TURN_ENDS,
    State.IDLE: frozenset({State.STARTING, State.RUNNING, State.CANCELLED}),
    State.INTERRUPTED: frozenset({State.STARTING, State.RUNNING, State.CANCELLED}),
    State.ERROR: frozenset({State.STARTING, State.RUNNING, State.CANCELLED}),
    State.CANCELLED: frozenset(),
}

SESSION_TOOL_STATUS = {
    State.STARTING: "running",
    State.RUNNING: "running",
    State.WAITING: "waiting_for_input",
    State.IDLE: "completed",
    State.INTERRUPTED: "interrupted",
    State.CANCELLED: "cancelled",
    State.ERROR: "error",
}

CODE_TOOL_STATUS = {
    State.STARTING: "running",
    State.RUNNING: "running",
    State.WAITING: "running",
    State.IDLE: "idle",
    State.INTERRUPTED: "idle",
    State.CANCELLED: "cancelled",
    State.ERROR: "error",
}


class IllegalMove(ValueError):
    """A bug in the engine: the state machine was asked for a move it does not have."""


# -- outcome ----------------------------------------------------------------------------------------------------------


class OutcomeCode(StrEnum):
    """How a turn ended, for programs. Only `COMPLETED` is a success."""

    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    MAX_TURNS = "max_turns"
    MAX_BUDGET = "max_budget"
    API_ERROR = "api_error"
    STRUCTURED_OUTPUT_MISSING = "structured_output_missing"
    EXECUTION_ERROR = "execution_error"
    CRASHED = "crashed"
    START_FAILED = "start_failed"
    NOT_SAVED = "not_saved"
    """It ran to its end, and its answer could not be written to the transcript: the next process will not know it."""
    PROTOCOL_VIOLATION = "protocol_violation"
    """The process wrote a frame that cannot be true, and was ended: a command of the session may have written it."""
    MACHINE_LOST = "machine_lost"
    """The machine of a fleet that ran it is gone, or was cut off and has lost the session; the session goes on at
    another one. What the turn had done by then may be done."""
    DROPPED = "dropped"
    """Of a message, never of a turn: an interruption came before it had run, and it never will."""


_STATE_AFTER = {
    OutcomeCode.COMPLETED: State.IDLE,
    OutcomeCode.INTERRUPTED: State.INTERRUPTED,
    OutcomeCode.CANCELLED: State.CANCELLED,
    OutcomeCode.MACHINE_LOST: State.INTERRUPTED,
    OutcomeCode.DROPPED: State.INTERRUPTED,
}
_LOG_IN = (
    "(For the server: `claude-code-mcp claude auth login` on its machine, or ANTHROPIC_API_KEY in its environment, "
    "which many clients take from the `env` of its entry. `claude-code-mcp doctor` says what is missing.)"
)
"""What is to be done where Claude Code advises a command of its own terminal."""
_SUBTYPE_CODES = {
    "error_max_turns": OutcomeCode.MAX_TURNS,
    "error_max_budget_usd": OutcomeCode.MAX_BUDGET,
    "error_max_structured_output_retries": OutcomeCode.STRUCTURED_OUTPUT_MISSING,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a turn. `result` is the final text, `detail` explains anything that went wrong."""

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

    @property
    def ok(self) -> bool:
        return self.code is OutcomeCode.COMPLETED

    @property
    def state(self) -> State:
        """The state of the session after it."""
        return _STATE_AFTER.get(self.code, State.ERROR)


def read_outcome(
    result: Mapping[str, Any], *, wants_structure: bool, interrupted: bool, usage: Usage | None = None
) -> Outcome:
    """The outcome in a result frame of the CLI.

    `interrupted` says that we asked for the interruption; `wants_structure` that a schema was set, so that a success
    without structured output counts as a failure; `usage` is what the turn used, by default what the frame says.
    Never raises: a result must always end its turn, so a field that is not of the expected type counts as absent.
    """
    code = _read_code(result, wants_structure, interrupted)
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


def _read_code(result: Mapping[str, Any], wants_structure: bool, interrupted: bool) -> OutcomeCode:
    subtype, failed = str(result.get("subtype")), bool(result.get("is_error"))
    if subtype in _SUBTYPE_CODES:
        return _SUBTYPE_CODES[subtype]
    # Early CLIs give an interrupted turn neither a reason nor `is_error`, only this subtype.
    aborted = interrupted and (failed or subtype == "error_during_execution")
    if str(result.get("terminal_reason")).startswith("aborted") or aborted:
        return OutcomeCode.INTERRUPTED
    if result.get("terminal_reason") == "api_error" or result.get("api_error_status"):
        return OutcomeCode.API_ERROR
    if failed or subtype != "success":
        return OutcomeCode.EXECUTION_ERROR
    if wants_structure and result.get("structured_output") is None:
        return OutcomeCode.STRUCTURED_OUTPUT_MISSING
    return OutcomeCode.COMPLETED


def _complete_usage(raw: Mapping[str, Any], used: ModelUsage) -> Mapping[str, Any]:
    """The `usage` of a result with the tokens of its usage by model, where that has any.

    Claude Code fills `usage` when an answer has come back to its main loop: at a stop for the budget it is all zeros,
    and subagents are never in it. The usage by model is added up with every answer, and is what the cost is made of.
    """
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
        return "The model finished without giving the structured output that was asked for."
    reason = _text(result, "result") or "Claude Code reported an error without saying which."
    return f"{reason} {_LOG_IN}" if code is OutcomeCode.API_ERROR and "/login" in reason else reason


def _text(result: Mapping[str, Any], key: str) -> str | None:
    value = result.get(key)
    return value if isinstance(value, str) else None


def _list(result: Mapping[str, Any], key: str) -> list[Any]:
    value = result.get(key)
    return value if isinstance(value, list) else []


def _mapping(result: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = result.get(key)
    return value if isinstance(value, dict) else {}
