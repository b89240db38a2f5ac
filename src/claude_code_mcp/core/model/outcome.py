"""The states of a session with their legal moves, how a turn ended, and what it used: tokens and money.

Tokens and money are what a turn used by model, found out from totals, and list prices. The CLI reports what was used
since its last result, or on some versions only totals since it started (`Totals`). Whatever is unreadable in a report
counts as nothing; an amount that cannot be one is found by `impossible_amount`. Claude Code knows the prices of its
models and reports dollars; those count. The bounds here say what a report must come to at least, and what tokens cost
that no report has.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

_ABSURD = 1 << 60
SYNTHETIC = "<synthetic>"
"""The model of an answer that the CLI made up itself."""
UNNAMED = "unknown"
"""The model of an amount that the CLI reported without a model."""


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """What one model consumed."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0
    cost_usd: float = 0.0

    @property
    def all_input_tokens(self) -> int:
        """Those of the cache too."""
        return self.input_tokens + self.cache_read_tokens + self.cache_creation_tokens

    def __add__(self, other: "ModelUsage") -> "ModelUsage":
        return ModelUsage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_creation_tokens + other.cache_creation_tokens,
            self.cost_usd + other.cost_usd,
        )

    def __sub__(self, other: "ModelUsage") -> "ModelUsage":
        """What is left, never less than nothing: totals that the CLI lost must not become a credit."""
        return ModelUsage(
            max(0, self.input_tokens - other.input_tokens),
            max(0, self.output_tokens - other.output_tokens),
            max(0, self.cache_read_tokens - other.cache_read_tokens),
            max(0, self.cache_creation_tokens - other.cache_creation_tokens),
            max(0.0, self.cost_usd - other.cost_usd),
        )

    def __or__(self, other: "ModelUsage") -> "ModelUsage":
        """Of each count, the larger one."""
        return ModelUsage(
            max(self.input_tokens, other.input_tokens),
            max(self.output_tokens, other.output_tokens),
            max(self.cache_read_tokens, other.cache_read_tokens),
            max(self.cache_creation_tokens, other.cache_creation_tokens),
            max(self.cost_usd, other.cost_usd),
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """Consumption by model; the sum is what it cost."""

    models: Mapping[str, ModelUsage] = field(default_factory=dict)

    @property
    def cost_usd(self) -> float:
        return sum(usage.cost_usd for usage in self.models.values())

    @property
    def total(self) -> ModelUsage:
        return sum(self.models.values(), ModelUsage())

    def __add__(self, other: "Usage") -> "Usage":
        names = {**self.models, **other.models}
        return Usage({name: self.of_model(name) + other.of_model(name) for name in names})

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage({name: usage - other.of_model(name) for name, usage in self.models.items()})

    def __or__(self, other: "Usage") -> "Usage":
        """Of each count of each model, the larger one."""
        names = {**self.models, **other.models}
        return Usage({name: self.of_model(name) | other.of_model(name) for name in names})

    @classmethod
    def of_answers(cls, answers: Iterable[tuple[str, ModelUsage]]) -> "Usage":
        """The sum of answers, each with the model that gave it. In proportion to their number, however many models a
        forger has named: adding them one by one would copy all of these each time."""
        models: dict[str, ModelUsage] = {}
        for model, used in answers:
            models[model] = models.get(model, ModelUsage()) + used
        return cls(models)

    def of_model(self, name: str) -> ModelUsage:
        return self.models.get(name, ModelUsage())


def read_usage(raw: object) -> Usage:
    """Usage from the CLI's `modelUsage` shape; anything unreadable in it counts as nothing."""
    if not isinstance(raw, dict):
        return Usage()
    return Usage({str(name): _read_model(value) for name, value in raw.items() if isinstance(value, dict)})


def _read_model(raw: dict[str, Any]) -> ModelUsage:
    return ModelUsage(
        int(read_number(raw, "inputTokens")),
        int(read_number(raw, "outputTokens")),
        int(read_number(raw, "cacheReadInputTokens")),
        int(read_number(raw, "cacheCreationInputTokens")),
        read_number(raw, "costUSD"),
    )


def read_number(raw: Mapping[str, Any], key: str) -> float:
    """A count or an amount; 0 for what cannot be one. JSON may hold NaN, infinities and numbers of any length."""
    value = raw.get(key)
    return value if isinstance(value, int | float) and 0 <= value < _ABSURD else 0


_AMOUNTS = ("total_cost_usd", "num_turns")
_BY_MODEL = ("modelUsage", "model_usage_since_last_result")


def impossible_amount(result: Mapping[str, Any]) -> str | None:
    """The name of a count or an amount in a result that no CLI can have arrived at: less than nothing, not a number or
    beyond all bounds. None if there is none; what is missing or not of the expected type is no amount."""
    return next((name for name, value in _amounts(result) if not _is_possible(value)), None)


def _amounts(result: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for name in _AMOUNTS:
        yield name, result.get(name)
    by_model = [(name, result.get(name)) for name in _BY_MODEL]
    tables = [(name, table) for name, models in by_model if isinstance(models, Mapping) for table in models.values()]
    for name, table in [*tables, ("usage", result.get("usage"))]:
        if isinstance(table, Mapping):
            yield from ((f"{name}.{key}", value) for key, value in table.items())


def _is_possible(value: object) -> bool:
    if not isinstance(value, int | float):
        return True
    return math.isfinite(value) and 0 <= value < _ABSURD if isinstance(value, float) else 0 <= value < _ABSURD


class Totals:
    """The totals of one process, as far as they are known. Takes each of its results once, in order."""

    def __init__(self, restored: Usage | None = None) -> None:
        """`restored` is what the transcript holds when a process resumes it. The CLI may count on from that or from
        nothing; which of the two shows in its first result."""
        self._known = restored or Usage()
        self._reported = Usage()
        """The last totals that this process itself has reported."""

    def shrink(self, result: Mapping[str, Any]) -> bool:
        """Whether a result has smaller totals than one before it, which no process does by itself. One that has none
        says nothing."""
        totals = _read_totals(result)
        return bool(totals.models) and not _continues(totals, self._reported)

    def used_by(self, result: Mapping[str, Any]) -> Usage:
        """What was used since the last result. Nothing is counted twice, whichever figures the CLI reports."""
        totals = _read_totals(result)
        since = result.get("model_usage_since_last_result")
        if isinstance(since, dict):
            # Both say the same, unless one of them is not true.
            used = read_usage(since) | (totals - self._reported if self._reported.models else Usage())
        elif _continues(totals, self._known):
            used = totals - self._known
        else:
            used = totals  # it began to count from nothing
        if totals.models:
            self._known = self._reported = totals
        return Usage({name: part for name, part in used.models.items() if part != ModelUsage()})


def _read_totals(result: Mapping[str, Any]) -> Usage:
    by_model = read_usage(result.get("modelUsage"))
    cost = read_number(result, "total_cost_usd")
    if by_model.models or not cost:
        return by_model
    return Usage({UNNAMED: ModelUsage(cost_usd=cost)})


def _continues(totals: Usage, known: Usage) -> bool:
    """Whether these totals contain the known ones: totals that are restored have every model with at least as much."""
    return all(name in totals.models and _at_least(totals.models[name], part) for name, part in known.models.items())


def _at_least(more: ModelUsage, less: ModelUsage) -> bool:
    return (
        more.input_tokens >= less.input_tokens
        and more.output_tokens >= less.output_tokens
        and more.cache_read_tokens >= less.cache_read_tokens
        and more.cache_creation_tokens >= less.cache_creation_tokens
        and more.cost_usd >= less.cost_usd * (1 - 1e-9)  # sums of floats, added up in another order
    )


# -- prices -----------------------------------------------------------------------------------------------------------


_HIGHEST = (15.0, 75.0, 1.5, 18.75)
"""Dollars for a million tokens of input, output, reading from the cache and writing to it."""
_LOWEST = {
    **dict.fromkeys(("3-opus", "opus-4-0", "opus-4-1", "opus-4-2025"), _HIGHEST),
    "opus": (4.0, 20.0, 0.2, 5.0),
    "mythos": (8.0, 40.0, 0.2, 10.0),
    "fable": (8.0, 40.0, 0.2, 10.0),
    "sonnet": (2.0, 10.0, 0.1, 2.5),
}
"""The lowest list price that any model of a family has had; the first part of a name that fits counts."""
_LOWEST_OF_ALL = (0.1, 0.5, 0.01, 0.125)


def at_most(tokens: ModelUsage) -> ModelUsage:
    """The tokens with what they cost at the highest list price."""
    return _priced(tokens, _HIGHEST)


def at_least(tokens: ModelUsage, model: str) -> ModelUsage:
    """The tokens with what they cost at the lowest list price of the model's family."""
    return _priced(tokens, next((price for name, price in _LOWEST.items() if name in model.lower()), _LOWEST_OF_ALL))


def _priced(tokens: ModelUsage, price: tuple[float, float, float, float]) -> ModelUsage:
    counts = (tokens.input_tokens, tokens.output_tokens, tokens.cache_read_tokens, tokens.cache_creation_tokens)
    return replace(tokens, cost_usd=sum(count * each for count, each in zip(counts, price, strict=True)) / 1e6)


# -- states ------------------------------------------------------------------------------------------------------------


class State(StrEnum):
    """What a session is doing. Whether it has a live process is another matter, and not part of the state."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    IDLE = "idle"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    ERROR = "error"
    LIMITED = "limit_reached"
    """A usage limit has ended the last turn."""


BUSY = frozenset({State.STARTING, State.RUNNING, State.WAITING})
AT_REST = frozenset({State.IDLE, State.INTERRUPTED, State.ERROR, State.LIMITED})
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
    State.LIMITED: frozenset({State.STARTING, State.RUNNING, State.CANCELLED}),
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
    State.LIMITED: "limit_reached",
}
BUSY_STATUSES = frozenset(SESSION_TOOL_STATUS[state] for state in BUSY)
"""Those of a session whose turn runs or waits for an answer."""

CODE_TOOL_STATUS = {
    State.STARTING: "running",
    State.RUNNING: "running",
    State.WAITING: "running",
    State.IDLE: "idle",
    State.INTERRUPTED: "idle",
    State.CANCELLED: "cancelled",
    State.ERROR: "error",
    State.LIMITED: "error",
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
    LIMIT_REACHED = "limit_reached"
    """A usage limit of the plan, or the rate limit of an API key (429)."""
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
    OutcomeCode.LIMIT_REACHED: State.LIMITED,
}
LOG_IN_HINT = (
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
    limit_type: str | None = None
    """The usage limit that ended it, such as `five_hour`."""
    resets_at: float | None = None
    """When that limit resets, if it is known."""

    @property
    def ok(self) -> bool:
        return self.code is OutcomeCode.COMPLETED

    @property
    def state(self) -> State:
        """The state of the session after it."""
        return _STATE_AFTER.get(self.code, State.ERROR)


_DENIALS = frozenset(
    {"user-rejected", "permission-rule", "automode-blocked", "automode-unavailable", "automode-parsing-error"}
)
"""Why a call did not run, as Claude Code writes it down, without those that say that it was broken off."""
CallStatus = Literal["ok", "error", "denied"]


def call_statuses(line: Mapping[str, Any]) -> dict[str, CallStatus]:
    """What became of the calls whose results are in a line of a transcript, or a frame of the stream, by their ids.
    Whoever denied a call, a person, a rule or the time that a question may stay open: it was denied, and has not
    failed. Lines of early versions do not say so; there it is an error."""
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


def read_outcome(
    result: Mapping[str, Any],
    *,
    wants_structure: bool,
    interrupted: bool,
    usage: Usage | None = None,
    rate_limited: bool = False,
) -> Outcome:
    """The outcome in a result frame of the CLI.

    `interrupted` says that we asked for the interruption; `wants_structure` that a schema was set, so that a success
    without structured output counts as a failure; `usage` is what the turn used, by default what the frame says;
    `rate_limited` that the last answer of the turn said so, since early CLIs give the result no status.
    Never raises: a result must always end its turn, so a field that is not of the expected type counts as absent.
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
