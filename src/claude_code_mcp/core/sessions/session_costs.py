"""The costs of a session: as reported by its processes, and as counted by the server where it carries the traffic.

While a turn runs, callers see the usage of its answers so far (`usage_so_far`, `turns_so_far`). It is only displayed,
never charged: the result that follows replaces it.

A cost is a claim of the CLI. Where this server carries the traffic to the model, it is compared with the counted
traffic (`TrafficLedger`); elsewhere with the usage in the model's answers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..claude.protocol import Conversation, Result
from ..model.outcome import Outcome, OutcomeCode, read_outcome
from ..model.usage import SYNTHETIC, UNNAMED, ModelUsage, Usage, at_least, at_most, read_number
from .traffic_ledger import TrafficLedger

_BYTES_PER_TOKEN = 3
_MAX_ANSWERS = 10_000
"""Answers of one turn that are remembered one by one."""
_MAX_STREAMS = 100
"""Maximum answers being streamed at once, of the conversation and of its subagents."""
_MAX_OUTPUT = 1 << 20
"""Tokens; no model writes that much in one answer."""


class SessionCosts:
    """Totals of one session; they outlive its processes and are kept in its record."""

    def __init__(self, usage: Usage) -> None:
        self.usage = usage
        self.spent_usd = 0.0
        """The dollars that count toward the session's budget. A fork starts with its source's spending."""
        self.model_turns = 0
        """The model turns that results have reported."""
        self._unreported_turns = 0
        self._api_ms = 0
        """The CLI's time with the API at the last result."""
        self._answers: dict[str, tuple[str, Mapping[str, Any], int]] = {}
        """Model, usage and size in bytes of every answer of the model since the last result, by message id."""
        self._uncovered = ModelUsage()
        """The tokens of earlier answers that no result has claimed so far."""
        self._ledger: TrafficLedger | None = None
        self.model: str | None = None
        """The model that answered last in the conversation itself."""
        self._turn_answers: set[str] = set()
        """The answers in the running turn, without subagents'."""
        self._streams: dict[str, str] = {}
        """The answer being streamed, by the tool use of its subagent."""
        self._output: dict[str, int] = {}
        """Output tokens that the stream reported for answers since the last result. Stream frames are not checked, so
        these are only displayed."""
        self._shown_ahead = ModelUsage()
        """The displayed tokens of earlier answers that no result has claimed so far."""
        self._prepaid = Usage()
        """What `lost_usage` charged for a process that may still report it."""

    def process_started(self, *, carried: bool) -> None:
        """Note a new process; `carried` says whether its model traffic is counted here."""
        self._ledger = TrafficLedger() if carried else None
        self._prepaid = Usage()

    def start_api_time(self, api_ms: int) -> None:
        """Note where the CLI's count starts: a resumed process continues from its transcript, a new conversation starts
        at 0."""
        self._api_ms = api_ms

    def read_result(
        self, frame: Result, *, wants_structure: bool, interrupted: bool, rate_limited: bool = False
    ) -> Outcome:
        """The outcome in a result. The CLI reports the API time as a total; the outcome has this turn's."""
        usage = (
            self._beyond_prepaid(frame.usage) if self._ledger is None else self._ledger.charge(frame.usage, final=True)
        )
        outcome = read_outcome(
            frame.raw,
            wants_structure=wants_structure,
            interrupted=interrupted,
            usage=usage,
            rate_limited=rate_limited,
        )
        # A result may claim fewer tokens than the answers before it used, for example next to a running subagent. The
        # rest is left to the next result or the end of the process, so a forged result makes nothing free.
        announced = sum((_tokens(usage) for _, usage, _ in self._answers.values()), self._uncovered)
        self._uncovered = replace(announced - frame.usage.total, cost_usd=0.0)
        shown = sum((tokens for _, tokens in self._ended_answers()), self._shown_ahead)
        # A result behind an interruption, ours or a signal's, leaves out the answer that was cut off, and no later one
        # claims it.
        cut_off = interrupted or outcome.code is OutcomeCode.INTERRUPTED
        self._shown_ahead = ModelUsage() if cut_off else replace(shown - frame.usage.total, cost_usd=0.0)
        self._forget_answers()
        total, before = outcome.duration_api_ms, self._api_ms
        self._api_ms = total
        return replace(outcome, duration_api_ms=total - before if total >= before else total)

    def _beyond_prepaid(self, claimed: Usage) -> Usage:
        """The claim without the amount that was charged in advance."""
        if not self._prepaid.models:
            return claimed
        beyond, self._prepaid = claimed - self._prepaid, self._prepaid - claimed
        return Usage({name: used for name, used in beyond.models.items() if used != ModelUsage()})

    def answer_received(self, frame: Conversation) -> None:
        """Note the usage of a model answer. One answer may arrive in several frames, all with the usage from its start,
        which does not count the output yet."""
        message = frame.raw.get("message")
        usage = message.get("usage") if isinstance(message, dict) else None
        if frame.role == "assistant" and isinstance(message, dict) and isinstance(usage, dict):
            message_id = str(message.get("id"))
            size = self._answers[message_id][2] if message_id in self._answers else 0
            self._answers[message_id] = str(message.get("model")), usage, size + frame.size
            if len(self._answers) > _MAX_ANSWERS:
                # A turn that never ends, or forged frames: the oldest answer still counts, without its model.
                _, oldest, its_size = self._answers.pop(next(iter(self._answers)))
                self._uncovered += _tokens(oldest, its_size)

    def usage_before_report(self) -> Usage:
        """Usage that is in no result so far, at the lowest list price, for the outcome of a turn that ends before its
        process reports. The later report is charged without it."""
        if self._ledger is not None:  # it charges everything when the process is left
            return self.lost_usage()
        so_far = self.usage_so_far - self.usage
        used = Usage({name: part for name, part in so_far.models.items() if part != ModelUsage()})
        self._forget_answers()
        self._uncovered = self._shown_ahead = ModelUsage()
        self._prepaid += used
        return used

    def lost_usage(self) -> Usage:
        """Usage that is in no result, of a process that died or was stopped before it reported its cost.

        The output is estimated from its size, and the highest list price is assumed: a turn that kills its own process
        must not be cheaper than one that does not. A report that still arrives is charged without it.
        """
        lost = Usage() if self._ledger is None else self._ledger.charge(Usage(), final=True)
        if self._ledger is not None:  # it has counted the answers too
            self._forget_answers()
            self._uncovered = self._shown_ahead = ModelUsage()
        if self._uncovered != ModelUsage():
            lost += Usage({UNNAMED: at_most(self._uncovered)})
        answers = self._answers.values()
        lost += Usage.of_answers((model, at_most(_tokens(usage, size))) for model, usage, size in answers)
        self._forget_answers()
        self._uncovered = self._shown_ahead = ModelUsage()
        self._prepaid += lost
        return lost

    def _forget_answers(self) -> None:
        self._answers.clear()
        self._streams.clear()
        self._output.clear()

    def turn_answered(self, frame: Conversation) -> None:
        """Note that the model answered in the main conversation, in the running turn."""
        message = frame.raw.get("message")
        if isinstance(message, dict) and message.get("model") not in (None, SYNTHETIC):
            self.model = str(message["model"])
            self._turn_answers.add(str(message.get("id")))

    def streamed(self, raw: Mapping[str, Any]) -> None:
        """Take the output count at the end of an answer's stream, after the frame of the answer."""
        event = raw.get("event")
        if not isinstance(event, dict) or event.get("type") == "content_block_delta":  # almost all of them
            return
        stream = str(raw.get("parent_tool_use_id"))
        if event.get("type") == "message_start" and isinstance(event.get("message"), dict):
            # Forged frames could open any number; the limit affects only the display.
            if len(self._streams) >= _MAX_STREAMS:
                self._streams.clear()
            self._streams[stream] = str(event["message"].get("id"))
        elif event.get("type") == "message_delta" and isinstance(event.get("usage"), dict):
            answer = self._streams.get(stream, "")
            output = int(read_number(event["usage"], "output_tokens"))
            # Only for known answers: stream frames are not checked.
            if answer in self._answers:
                self._output[answer] = output if output <= _MAX_OUTPUT else 0

    @property
    def usage_so_far(self) -> Usage:
        """The totals including unclaimed answers, at their lowest possible price. A result claims at least as much, so
        this does not shrink, unless frames were forged."""
        if self._ledger is not None:
            return self.usage + self._ledger.unclaimed
        ahead = Usage({UNNAMED: at_least(self._shown_ahead, "")} if self._shown_ahead != ModelUsage() else {})
        answers = Usage.of_answers((model, at_least(tokens, model)) for model, tokens in self._ended_answers())
        return self.usage + ahead + answers

    def _ended_answers(self) -> Iterator[tuple[str, ModelUsage]]:
        """Model and tokens of the answers since the last result, without unfinished streams: Claude Code omits an
        answer that was cut off by an interruption from its result."""
        begun = {*self._streams.values()} - self._output.keys()
        for answer, (model, usage, _) in self._answers.items():
            if answer not in begun:
                tokens = _tokens(usage)
                yield model, replace(tokens, output_tokens=max(tokens.output_tokens, self._output.get(answer, 0)))

    @property
    def turns_so_far(self) -> int:
        return self.model_turns + self._unreported_turns + len(self._turn_answers)

    def turn_ended(self, outcome: Outcome) -> Outcome:
        """Count the turn; return its outcome with every model answer that was seen.

        A killed process does not report its answers: these are displayed but not recorded, because a record with turns
        implies a conversation on disk, and it is unknown whether they were written.
        """
        self.add(outcome.usage)
        unreported = max(0, len(self._turn_answers) - outcome.num_turns)
        self.model_turns += outcome.num_turns
        self._unreported_turns += unreported
        self._turn_answers.clear()
        return replace(outcome, num_turns=outcome.num_turns + unreported)

    def count(self, usage: Usage) -> None:
        """Count the usage that the API reports for an answer, whoever requested it."""
        if self._ledger is not None:
            self._ledger.count(usage)

    def unclaimed_usage(self, *, final: bool) -> Usage:
        """Counted usage to charge although no result claimed it; `final` if none will."""
        return Usage() if self._ledger is None else self._ledger.charge(Usage(), final=final)

    @property
    def uncharged_usd(self) -> float:
        """The minimum spent in addition to what is charged."""
        return 0.0 if self._ledger is None else self._ledger.due_usd

    def add(self, usage: Usage) -> None:
        self.usage += usage
        self.spent_usd += usage.cost_usd


def _tokens(usage: Mapping[str, Any], size: int = 0) -> ModelUsage:
    """The usage in an answer; with its size in bytes, at least the output of that size."""
    return ModelUsage(
        int(read_number(usage, "input_tokens")),
        max(int(read_number(usage, "output_tokens")), size // _BYTES_PER_TOKEN),
        int(read_number(usage, "cache_read_input_tokens")),
        int(read_number(usage, "cache_creation_input_tokens")),
    )
