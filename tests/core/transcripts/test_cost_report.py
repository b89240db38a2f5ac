"""What sessions cost: nothing is counted twice, and what no process has priced is not made up."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claude_code_mcp.core.transcripts.cost_table import (
    CostLine,
    CostQuery,
    Costs,
    CostTable,
    CountedSession,
    Grouping,
    SpentSession,
    spent_session,
)
from claude_code_mcp.core.transcripts.index import FileIndex
from claude_code_mcp.core.transcripts.transcript_summary import TranscriptSummary, dump, load

from .catalog_disk import lines, user

DAY = 86_400_000


def answer(number: int, day: int, tokens: int, model: str = "opus") -> dict[str, Any]:
    usage = {"input_tokens": 0, "output_tokens": tokens}
    message = {"role": "assistant", "id": f"m{number}", "model": model, "usage": usage, "content": []}
    return {"type": "assistant", "message": message, "timestamp": f"2026-11-{day:02}T10:00:00.000Z"}


def costs(dollars: float, since: int = 1, model: str = "opus") -> dict[str, Any]:
    started = 1793491200000 + (since - 1) * DAY  # 2026-11-01
    return {"type": "cost-state", "startTime": started, "modelUsage": {model: {"outputTokens": 9, "costUSD": dollars}}}


def summary(*written: dict[str, Any]) -> TranscriptSummary:
    found = TranscriptSummary("-somewhere")
    found.feed(lines(user("hello"), *written).splitlines())
    return found


def reported(session: SpentSession, by: Grouping) -> Costs:
    table = CostTable(FileIndex(None))
    table.put([CountedSession(session, "", "")])
    costs = table.report(CostQuery(by))
    assert costs is not None
    return costs


def cost_lines(session: SpentSession, by: Grouping) -> list[CostLine]:
    return reported(session, by).lines


def by_day(found: TranscriptSummary) -> dict[str, float]:
    session = spent_session("s", found, 0, {})
    return {line.name: round(line.usd, 9) for line in cost_lines(session, "day")}


def test_cost_is_assigned_to_the_days_of_the_answers() -> None:
    found = summary(answer(1, 1, 30), answer(2, 2, 10), costs(0.4))
    assert by_day(found) == {"2026-11-01": 0.3, "2026-11-02": 0.1}


def test_totals_that_count_on_are_not_counted_twice() -> None:
    found = summary(answer(1, 1, 10), costs(0.4), answer(2, 3, 10), costs(1.0, since=3))
    assert by_day(found) == {"2026-11-01": 0.4, "2026-11-03": 0.6}
    assert found.cost_usd == pytest.approx(1.0)


def test_totals_that_begin_again_are_added() -> None:
    found = summary(answer(1, 1, 10), costs(0.4), answer(2, 3, 10), costs(0.1, since=3))
    assert by_day(found) == {"2026-11-01": 0.4, "2026-11-03": 0.1}


def test_answers_that_a_fork_took_over_cost_nothing_again() -> None:
    found = summary(answer(1, 1, 1000), answer(2, 5, 10), costs(0.2, since=5))
    assert by_day(found) == {"2026-11-05": 0.2}


def test_answers_that_a_fork_took_over_are_not_unpriced_either() -> None:
    taken = {**answer(1, 1, 1000), "forkedFrom": {"sessionId": "source"}}
    begun = {"type": "queue-operation", "operation": "enqueue", "timestamp": "2026-11-04T10:00:00.000Z"}
    found = summary(begun, taken, answer(2, 3, 100), answer(3, 5, 7))
    (line,) = cost_lines(spent_session("s", found, 0, {}), "session")
    assert line.unpriced_tokens == 7


def test_a_model_that_only_subagents_used_is_counted_on_the_day_the_process_began() -> None:
    found = summary(answer(1, 2, 10), costs(0.2, since=2, model="haiku"))
    assert by_day(found) == {"2026-11-02": 0.2}


def test_one_answer_in_several_lines_is_counted_once_and_unpriced_until_a_process_ends() -> None:
    found = summary(answer(1, 1, 10), answer(1, 1, 10), answer(2, 1, 5))
    (line,) = cost_lines(spent_session("s", found, 0, {}), "model")
    assert (line.name, line.usd, line.unpriced_tokens, line.sessions) == ("opus", 0, 15, 1)
    assert found.cost_usd is None


def test_what_the_record_has_beyond_the_transcript_is_counted_on_the_last_day() -> None:
    found = summary(answer(1, 1, 10), costs(0.4))
    recorded = {"opus": [0.0, 20.0, 0.0, 0.0, 0.5]}
    session = spent_session("s", found, 1793491200 + 2 * 86_400, recorded)
    assert {line.name: round(line.usd, 9) for line in cost_lines(session, "day")} == {
        "2026-11-01": 0.4,
        "2026-11-03": 0.1,
    }
    former = summary(answer(9, 1, 10), costs(0.1))
    assert cost_lines(spent_session("s", found, 0, recorded, [former]), "day")[0].usd == pytest.approx(0.4)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 50), st.sampled_from(["opus", "haiku"])), max_size=12))
def test_every_grouping_adds_up_to_the_same(steps: list[tuple[int, int, str]]) -> None:
    written = []
    for number, (day, amount, model) in enumerate(steps):
        written += [answer(number, day, amount, model), costs(float(amount), day, model)]
    found = summary(*written)
    assert load(dump(found)) == found
    session = spent_session("s", found, 0, {})
    groupings: tuple[Grouping, ...] = ("day", "model", "project", "session")
    for report in (reported(session, by) for by in groupings):
        assert report.total.usd == pytest.approx(found.cost_usd or 0.0)
        assert sum(line.usd for line in report.lines) == pytest.approx(found.cost_usd or 0.0)
