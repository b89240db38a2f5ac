"""What is shown of a turn while it runs, from frames alone: never more than its result will claim, never charged."""

from typing import Any

import pytest

from claude_code_mcp.core.claude.protocol import Conversation, Result
from claude_code_mcp.core.model.outcome import Outcome, OutcomeCode
from claude_code_mcp.core.model.usage import ModelUsage, Usage
from claude_code_mcp.core.sessions import session_costs
from claude_code_mcp.core.sessions.session_costs import SessionCosts

MODEL = "claude-opus-5-5"


def answer(name: str, tokens: int, subagent: str | None = None) -> Conversation:
    usage = {"input_tokens": tokens, "output_tokens": 1}
    message = {"id": name, "model": MODEL, "usage": usage, "content": []}
    return Conversation({"type": "assistant", "parent_tool_use_id": subagent, "message": message}, 10)


def stream(costs: SessionCosts, kind: str, **fields: Any) -> None:
    costs.streamed({"type": "stream_event", "parent_tool_use_id": None, "event": {"type": kind, **fields}})


def begin(costs: SessionCosts, name: str) -> None:
    stream(costs, "message_start", message={"id": name})


def end(costs: SessionCosts, output: Any) -> None:
    stream(costs, "message_delta", usage={"output_tokens": output})


def answered(costs: SessionCosts, name: str, tokens: int, output: int) -> None:
    begin(costs, name)
    frame = answer(name, tokens)
    costs.answer_received(frame)
    costs.turn_answered(frame)
    end(costs, output)


def result(costs: SessionCosts, tokens: int, output: int, cost: float, turns: int = 1) -> Outcome:
    used = Usage({MODEL: ModelUsage(tokens, output, cost_usd=cost)})
    frame = Result({"type": "result", "subtype": "success", "num_turns": turns}, 10, used)
    outcome = costs.read_result(frame, wants_structure=False, interrupted=False)
    costs.turn_ended(outcome)
    return outcome


def shown(costs: SessionCosts) -> tuple[int, int]:
    total = costs.usage_so_far.total
    return total.input_tokens, total.output_tokens


def test_answers_are_shown_as_they_come_and_the_result_takes_their_place() -> None:
    costs = SessionCosts(Usage())
    answered(costs, "one", 1000, 50)
    assert (shown(costs), costs.turns_so_far, costs.spent_usd) == ((1000, 50), 1, 0.0)
    answered(costs, "two", 2000, 60)
    before = costs.usage_so_far.cost_usd
    assert (shown(costs), costs.turns_so_far) == ((3000, 110), 2)
    result(costs, 3000, 110, 1.0, turns=2)
    assert (shown(costs), costs.turns_so_far, costs.usage_so_far.cost_usd) == ((3000, 110), 2, 1.0)
    assert before < 1.0
    assert costs.model == MODEL


def test_an_answer_that_is_not_at_its_end_is_not_shown_since_it_may_be_cut_off() -> None:
    costs = SessionCosts(Usage())
    answered(costs, "one", 1000, 50)
    begin(costs, "two")
    costs.answer_received(answer("two", 2000))
    assert shown(costs) == (1000, 50)
    result(costs, 1000, 50, 1.0)
    assert shown(costs) == (1000, 50), "the result leaves it out"


def test_answers_of_a_subagent_that_no_result_has_claimed_yet_stay_shown() -> None:
    costs = SessionCosts(Usage())
    answered(costs, "one", 1000, 50)
    costs.answer_received(answer("of a subagent", 700, subagent="use"))
    assert (shown(costs), costs.turns_so_far) == ((1700, 51), 1), "its turns are its own"
    result(costs, 1000, 50, 1.0)
    assert shown(costs) == (1700, 51)
    result(costs, 700, 9, 0.5)
    assert shown(costs) == (1700, 59)


def test_forged_counts_of_the_stream_are_not_charged() -> None:
    costs = SessionCosts(Usage())
    answered(costs, "one", 1000, 50)
    for forged in (-5, "many", float("nan"), 1 << 70, 1 << 40, None):
        end(costs, forged)
        assert shown(costs) == (1000, 1), "what cannot be a count is none"
    end(costs, 100_000)
    costs.streamed({"type": "stream_event", "event": "no object"})
    outcome = result(costs, 1000, 50, 1.0)
    assert outcome.usage.total.output_tokens == 50
    assert costs.spent_usd == 1.0
    assert costs.lost_usage() == Usage()


def test_streams_without_end_are_bounded() -> None:
    costs = SessionCosts(Usage())
    for number in range(5000):
        costs.streamed({"parent_tool_use_id": number, "event": {"type": "message_start", "message": {"id": number}}})
    assert len(costs._streams) <= 100


def test_the_answers_of_a_turn_whose_process_died_are_counted() -> None:
    costs = SessionCosts(Usage())
    answered(costs, "one", 1000, 50)
    costs.turn_ended(Outcome(OutcomeCode.CRASHED, usage=costs.lost_usage()))
    assert (costs.turns_so_far, costs.model_turns) == (1, 0), "what is recorded stands for a conversation on disk"
    assert costs.usage == costs.usage_so_far
    assert costs.spent_usd > 0


def test_answers_of_ever_other_models_are_added_up_in_proportion_to_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    added = 0
    add = ModelUsage.__add__

    def counting(one: ModelUsage, other: ModelUsage) -> ModelUsage:
        nonlocal added
        added += 1
        return add(one, other)

    monkeypatch.setattr(ModelUsage, "__add__", counting)
    costs = SessionCosts(Usage())
    for number in range(500):
        frame = answer(f"answer {number}", 10)
        frame.raw["message"]["model"] = f"model {number}"
        costs.answer_received(frame)
    assert costs.usage_so_far.total.input_tokens == 5000
    assert costs.lost_usage().total.input_tokens == 5000
    assert added < 10 * 500


def test_oldest_of_many_answers_are_counted_without_their_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_costs, "_MAX_ANSWERS", 10)
    costs = SessionCosts(Usage())
    for number in range(25):
        costs.answer_received(answer(f"answer {number}", 10))
    assert len(costs._answers) == 10
    assert costs.lost_usage().total.input_tokens == 250
