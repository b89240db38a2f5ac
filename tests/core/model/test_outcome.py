"""What a result frame of the CLI means."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.core.model.outcome import Outcome, OutcomeCode, call_statuses, read_outcome
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.model.usage import ModelUsage
from tests.support.tables import every_row

SUCCESS = {"type": "result", "subtype": "success", "is_error": False, "result": "done", "num_turns": 2}
API_ERROR = {**SUCCESS, "is_error": True, "terminal_reason": "api_error", "api_error_status": 529, "result": "Busy"}
ABORTED = {"subtype": "error_during_execution", "is_error": True, "terminal_reason": "aborted_streaming"}
FAILED = {"subtype": "error_during_execution", "is_error": True, "errors": ["boom", "[ede_diagnostic] x"]}


def read(raw: dict[str, Any], *, wants_structure: bool = False, interrupted: bool = False) -> Outcome:
    return read_outcome(raw, wants_structure=wants_structure, interrupted=interrupted)


@every_row(
    ("raw", "code"),
    [
        (SUCCESS, OutcomeCode.COMPLETED),
        ({"subtype": "error_max_turns", "is_error": False}, OutcomeCode.MAX_TURNS),
        ({"subtype": "error_max_budget_usd", "is_error": True}, OutcomeCode.MAX_BUDGET),
        ({"subtype": "error_max_structured_output_retries"}, OutcomeCode.STRUCTURED_OUTPUT_MISSING),
        (API_ERROR, OutcomeCode.API_ERROR),
        ({**SUCCESS, "is_error": True, "api_error_status": 401}, OutcomeCode.API_ERROR),
        ({**SUCCESS, "is_error": True, "api_error_status": 429}, OutcomeCode.LIMIT_REACHED),
        (ABORTED, OutcomeCode.INTERRUPTED),
        ({**ABORTED, "terminal_reason": "aborted_tools"}, OutcomeCode.INTERRUPTED),
        (FAILED, OutcomeCode.EXECUTION_ERROR),
        ({**SUCCESS, "is_error": True}, OutcomeCode.EXECUTION_ERROR),
        ({**SUCCESS, "subtype": "error_of_tomorrow"}, OutcomeCode.EXECUTION_ERROR),
        ({"type": "result"}, OutcomeCode.EXECUTION_ERROR),
        ({}, OutcomeCode.EXECUTION_ERROR),
    ],
)
def test_a_result_has_a_code(raw: dict[str, Any], code: OutcomeCode) -> None:
    outcome = read(raw)
    assert outcome.code is code
    assert outcome.ok == (code is OutcomeCode.COMPLETED)
    assert bool(outcome.detail) != outcome.ok, "whatever went wrong is explained, and nothing else is"


@every_row(
    ("raw", "code"),
    [
        (FAILED, OutcomeCode.INTERRUPTED),
        (API_ERROR, OutcomeCode.INTERRUPTED),
        (SUCCESS, OutcomeCode.COMPLETED),
        ({"subtype": "error_max_turns", "is_error": True}, OutcomeCode.MAX_TURNS),
    ],
)
def test_a_failure_that_we_asked_for_is_an_interruption(raw: dict[str, Any], code: OutcomeCode) -> None:
    assert read(raw, interrupted=True).code is code


@every_row(
    ("raw", "code"),
    [
        (SUCCESS, OutcomeCode.STRUCTURED_OUTPUT_MISSING),
        ({**SUCCESS, "structured_output": None}, OutcomeCode.STRUCTURED_OUTPUT_MISSING),
        ({**SUCCESS, "structured_output": {"a": 1}}, OutcomeCode.COMPLETED),
        ({**SUCCESS, "structured_output": {}}, OutcomeCode.COMPLETED),
        ({**SUCCESS, "structured_output": 0}, OutcomeCode.COMPLETED),
        (API_ERROR, OutcomeCode.API_ERROR),
    ],
)
def test_success_without_structured_output_is_a_failure(raw: dict[str, Any], code: OutcomeCode) -> None:
    assert read(raw, wants_structure=True).code is code


@every_row("code", OutcomeCode)
def test_every_outcome_leaves_the_session_in_a_state_of_its_own_kind(code: OutcomeCode) -> None:
    special = {
        OutcomeCode.COMPLETED: State.IDLE,
        OutcomeCode.INTERRUPTED: State.INTERRUPTED,
        OutcomeCode.CANCELLED: State.CANCELLED,
        OutcomeCode.MACHINE_LOST: State.INTERRUPTED,
        OutcomeCode.DROPPED: State.INTERRUPTED,
        OutcomeCode.LIMIT_REACHED: State.LIMITED,
    }
    assert Outcome(code).state is special.get(code, State.ERROR)


@every_row(
    ("raw", "detail"),
    [
        (FAILED, "boom"),
        ({**FAILED, "errors": ["one", "two"]}, "one; two"),
        (ABORTED, "The turn was interrupted."),
        (API_ERROR, "Busy"),
        ({}, "Claude Code reported an error without details."),
    ],
)
def test_the_detail_explains_the_failure(raw: dict[str, Any], detail: str) -> None:
    assert read(raw).detail == detail


def test_all_that_a_result_reports_is_kept() -> None:
    outcome = read(
        {
            **SUCCESS,
            "terminal_reason": "completed",
            "stop_reason": "end_turn",
            "duration_ms": 12.7,
            "duration_api_ms": 5,
            "usage": {"input_tokens": 3},
            "permission_denials": [{"tool_name": "Bash"}],
            "model_usage_since_last_result": {"opus": {"inputTokens": 3, "costUSD": 0.25}},
        }
    )
    assert outcome == Outcome(
        OutcomeCode.COMPLETED,
        result="done",
        subtype="success",
        terminal_reason="completed",
        stop_reason="end_turn",
        usage=outcome.usage,
        raw_usage={"input_tokens": 3},
        num_turns=2,
        duration_ms=12,
        duration_api_ms=5,
        permission_denials=({"tool_name": "Bash"},),
    )
    assert outcome.usage.models == {"opus": ModelUsage(input_tokens=3, cost_usd=0.25)}
    assert read(API_ERROR).api_status == 529


NONSENSE: list[Any] = ["soon", -1, float("nan"), float("inf"), 10**400, [None], {"a": {}}, True, None]
FIELDS = [
    "subtype",
    "is_error",
    "result",
    "terminal_reason",
    "api_error_status",
    "stop_reason",
    "structured_output",
    "model_usage_since_last_result",
    "usage",
    "num_turns",
    "duration_ms",
    "duration_api_ms",
    "permission_denials",
    "errors",
]


@every_row("base", [SUCCESS, FAILED, API_ERROR])
@every_row("field", FIELDS)
def test_a_malformed_field_never_keeps_a_result_from_ending_its_turn(base: dict[str, Any], field: str) -> None:
    for value in NONSENSE:
        outcome = read({**base, field: value})
        assert isinstance(outcome.result, str)
        assert isinstance(outcome.raw_usage, dict)
        assert outcome.num_turns >= 0


@given(st.dictionaries(st.sampled_from(FIELDS), st.sampled_from(NONSENSE)), st.booleans(), st.booleans())
def test_any_result_at_all_has_an_outcome(raw: dict[str, Any], wants_structure: bool, interrupted: bool) -> None:
    outcome = read(raw, wants_structure=wants_structure, interrupted=interrupted)
    assert outcome.state in (State.IDLE, State.INTERRUPTED, State.ERROR)


def test_who_is_not_logged_in_is_told_what_to_do_about_it_here() -> None:
    login_error = {**API_ERROR, "api_error_status": None, "result": "Not logged in · Please run /login"}
    outcome = read_outcome(login_error, wants_structure=False, interrupted=False)
    assert outcome.detail.startswith("Not logged in · Please run /login (")
    assert "`claude-code-mcp claude auth" in outcome.detail
    assert read_outcome(API_ERROR, wants_structure=False, interrupted=False).detail == "Busy"


USED = {"claude-x": {"inputTokens": 500, "outputTokens": 20, "cacheReadInputTokens": 7, "costUSD": 0.1}}
NOTHING = {"input_tokens": 0, "output_tokens": 0, "service_tier": "standard"}


@every_row(
    ("raw", "usage"),
    [
        (
            {**SUCCESS, "usage": NOTHING, "model_usage_since_last_result": USED},
            {
                "input_tokens": 500,
                "output_tokens": 20,
                "cache_read_input_tokens": 7,
                "service_tier": "standard",
            },
        ),
        ({**SUCCESS, "usage": {"input_tokens": 3}}, {"input_tokens": 3}),
        (SUCCESS, {}),
    ],
)
def test_the_usage_has_the_tokens_of_the_usage_by_model_where_there_is_one(raw: Any, usage: Any) -> None:
    assert read(raw).raw_usage == usage


def results(*calls: str, is_error: bool = True) -> dict[str, Any]:
    content = [{"type": "tool_result", "tool_use_id": call, "is_error": is_error} for call in calls]
    return {"type": "user", "message": {"role": "user", "content": content}}


@every_row(
    ("line", "status"),
    [
        (results("a", is_error=False), "ok"),
        (results("a"), "error"),
        ({**results("a"), "toolDenialKind": "user-rejected"}, "denied"),
        ({**results("a"), "toolDenialKind": "permission-rule"}, "denied"),
        ({**results("a"), "toolDenialKind": "interrupted"}, "error"),
        ({**results("a"), "toolDenialKind": ["user-rejected"]}, "error"),
        ({**results("a", is_error=False), "toolDenialKind": "user-rejected"}, "ok"),
        ({**results("a"), "tool_result_meta": [{"id": "a", "non_execution_kind": "permission-rule"}]}, "denied"),
        ({**results("a"), "tool_result_meta": [{"id": "a", "permission_decision": {"decision": "accept"}}]}, "error"),
        ({**results("a"), "tool_result_meta": [None, {"id": ["a"]}, "x"]}, "error"),
    ],
)
def test_denied_call_does_not_count_as_failed(line: dict[str, Any], status: str) -> None:
    assert call_statuses(line) == {"a": status}


def test_calls_of_one_frame_have_separate_statuses() -> None:
    frame = {**results("a", "b"), "tool_result_meta": [{"id": "b", "non_execution_kind": "user-rejected"}, {"id": "a"}]}
    assert call_statuses(frame) == {"a": "error", "b": "denied"}


def test_non_message_has_no_calls() -> None:
    for line in (
        {},
        {"message": "x"},
        {"message": {"content": "x"}},
        {"message": {"content": [None, {"type": "text"}]}},
    ):
        assert call_statuses(line) == {}
