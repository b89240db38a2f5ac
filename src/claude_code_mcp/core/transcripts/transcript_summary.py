"""A summary of one transcript: names, prompts, times, size and cost per day.

`TranscriptSummary` takes a transcript's lines in order. It can be stored and continued at its offset, because
transcripts only grow. Linear in its input. Irrelevant lines, such as tool results, are recognized by their beginning
and not parsed.

When a process ends, the CLI writes the session's cost (`cost-state`) as totals. The increase is distributed over the
days on which that process had model answers, in proportion to their tokens. Answers without such a line after them are
counted in tokens only.
"""

import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ..model.text import clip_line
from ..model.usage import SYNTHETIC, UNNAMED, ModelUsage, Totals, Usage, at_least, read_number, read_usage
from .transcript_lines import (
    clean,
    clean_line,
    ends_of,
    id_of,
    in_folder,
    is_bare_command,
    lines_from,
    moment_of,
    open_regular,
    parse,
    typed,
)

MAX_TITLE = 200
"""Characters of a title or first prompt."""
_MAX_PROMPT = 400
_SEARCHED_PROMPTS = 16_000
"""Characters of all prompts together that are searchable."""
_WHOLE_UP_TO = 256 << 20
_END = 4 << 20
"""How much of the beginning and end of a transcript larger than `_WHOLE_UP_TO` is read."""
_CHECKED = 1024
_MAX_PATH = 4096
_MAX_SUMMARIES = 100
_MAX_MODELS = 64
"""Further models are counted together, as a model without a name."""
_MAX_ROWS = 4096
"""Maximum number of days and models; usage on further days is counted without a day."""
_LEADING_TYPE = re.compile(rb'\{"type": ?"([a-z-]+)"')
_READ_TYPES = {
    b"user", b"assistant", b"custom-title", b"ai-title", b"summary", b"cost-state", b"tag", b"relocated",
    b"queue-operation",
}  # fmt: skip

_IS_DAY = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
NO_DAY = "0000-00-00"
"""The key of an unknown day."""

Row = list[float]
"""Input, output, cache read and cache creation tokens, and dollars."""


@dataclass
class TranscriptSummary:
    """Plain values only, so that it can be written as JSON. `usage` is by day and model, joined by a space."""

    folder: str
    offset: int = 0
    before_offset: int = 0
    """A checksum of the bytes before the offset: if they differ, the file was not only appended to."""
    whole: bool = True
    """Whether every line was read."""
    sidechain: bool | None = None
    cwd: str | None = None
    own_cwd: bool = False
    """Whether `cwd` is the directory that the folder is named after: a fork contains lines of others too."""
    branch: str | None = None
    custom_title: str | None = None
    ai_title: str | None = None
    summary: str | None = None
    others: dict[str, str] = field(default_factory=dict)
    """Summaries by the message that they end with, which this transcript does not contain so far."""
    tag: str | None = None
    first_prompt: str | None = None
    prompts: str = ""
    messages: int = 0
    first_at: str | None = None
    last_at: str | None = None
    model: str | None = None
    begun: str | None = None
    """When the first message was received. A fork contains older answers that another session paid for."""
    answer: str | None = None
    """The id of the last answer read: an answer has several lines."""
    usage: dict[str, Row] = field(default_factory=dict)
    pending: dict[str, Row] = field(default_factory=dict)
    """Answers since the last cost line."""
    totals: dict[str, Any] = field(default_factory=dict)
    """The totals in that line."""
    models: list[str] = field(default_factory=list)
    """The models that are counted separately."""

    @property
    def is_session(self) -> bool:
        """False for a damaged file, a file without a message, and a subagent's transcript."""
        return self.cwd is not None and not self.sidechain

    @property
    def title(self) -> str | None:
        """The last title set by the person, otherwise the last generated one, otherwise a summary of old versions."""
        return self.custom_title or self.ai_title or self.summary

    @property
    def cost_usd(self) -> float | None:
        """None if no process has reported its cost."""
        return sum(row[4] for row in self.usage.values()) if self.totals else None

    @property
    def estimated_usd(self) -> float | None:
        """At least this much, at list prices, if there are answers that no process has reported the cost of yet."""
        pending = [at_least(ModelUsage(*map(int, row[:4])), key[11:]).cost_usd for key, row in self.pending.items()]
        return (self.cost_usd or 0.0) + sum(pending) if pending else None

    def feed(self, lines: Iterable[bytes]) -> None:
        for raw in lines:
            line = parse(raw) if _is_read(raw) else None
            if line is not None:
                self._take(line)

    def _take(self, line: dict[str, Any]) -> None:
        match line.get("type"):
            case "custom-title":
                self.custom_title = _title(line.get("customTitle"))
            case "ai-title":
                self.ai_title = _title(line.get("aiTitle")) or self.ai_title
            case "tag":
                self.tag = _title(line.get("tag"))
            case "summary":
                # Old versions wrote summaries of other conversations too; ours is one whose last message is in this
                # file.
                title, leaf = _title(line.get("summary")), id_of(line.get("leafUuid"))
                if title and leaf is not None and len(self.others) < _MAX_SUMMARIES:
                    self.others[leaf] = title
            case "queue-operation":
                self.begun = self.begun or moment_of(line.get("timestamp"))
            case "relocated":
                self._take_cwd(line.get("relocatedCwd"))
            case "cost-state":
                self._take_costs(line)
            case "user" | "assistant":
                self._take_message(line)

    def _take_message(self, line: dict[str, Any]) -> None:
        if self.sidechain is None and isinstance(line.get("isSidechain"), bool):
            self.sidechain = line["isSidechain"]
        self._take_cwd(line.get("cwd"))
        self.summary = self.others.pop(id_of(line.get("uuid")) or "", self.summary)
        branch, at = line.get("gitBranch"), moment_of(line.get("timestamp"))
        if isinstance(branch, str):
            self.branch = _title(branch) if branch != "HEAD" else None
        if at is not None:
            self.first_at, self.last_at = self.first_at or at, at
        if line["type"] == "assistant":
            self._take_answer(line)
            return
        prompt = typed(line)
        if prompt is not None:
            self._take_prompt(prompt)

    def _take_cwd(self, cwd: object) -> None:
        if isinstance(cwd, str) and 0 < len(cwd) <= _MAX_PATH and not self.own_cwd:
            own = in_folder(cwd, self.folder)
            if own or self.cwd is None:
                self.cwd, self.own_cwd = clean_line(cwd), own

    def _take_prompt(self, prompt: str) -> None:
        """The first prompt is the first that is not a bare command, or a bare command if there is no other."""
        self.messages += 1
        if self.first_prompt is None or (is_bare_command(self.first_prompt) and not is_bare_command(prompt)):
            self.first_prompt = clip_line(prompt, MAX_TITLE)
        if len(self.prompts) < _SEARCHED_PROMPTS:
            self.prompts += f"{clip_line(prompt, _MAX_PROMPT)}\n"

    def _take_answer(self, line: Mapping[str, Any]) -> None:
        message = line.get("message")
        if not isinstance(message, dict):
            return
        model, answer, usage = message.get("model"), id_of(message.get("id")) or "", message.get("usage")
        if answer != self.answer:
            self.messages += 1
        if not isinstance(model, str) or model == SYNTHETIC:
            return
        self.model = self._model_name(model)
        # An answer that was copied from another session has been paid for there.
        copied = "forkedFrom" in line or str(line.get("timestamp")) < (self.begun or "")
        if isinstance(usage, dict) and answer != self.answer and not copied:
            _add(self.pending, _day(line.get("timestamp")), self.model, _tokens(usage))
        self.answer = answer

    def _take_costs(self, line: Mapping[str, Any]) -> None:
        if not isinstance(line.get("modelUsage"), dict):
            return
        # The line has totals of the whole session: only their increase belongs to this process.
        totals = _written(self._by_model_name(read_usage(line["modelUsage"])))
        new = Totals(read_usage(self.totals)).used_by({"modelUsage": totals})
        began = read_number(line, "startTime")
        first = datetime.fromtimestamp(began / 1000, UTC).date().isoformat() if 0 < began < 1e14 else ""
        days = _days_by_model((key, row) for key, row in self.pending.items() if key[:10] >= first)
        for model, used in new.models.items():
            for day, share in _shares(days.get(model, {}), first or _day(self.last_at)):
                _add(self.usage, day, model, [part * share for part in _row(used)])
        self.totals, self.pending = totals, {}

    def _model_name(self, name: str) -> str:
        """The name under which a model is counted; always the same for a model."""
        model = clip_line(clean(name), MAX_TITLE)
        if model not in self.models:
            if len(self.models) >= _MAX_MODELS:
                return UNNAMED
            self.models.append(model)
        return model

    def _by_model_name(self, usage: Usage) -> Usage:
        used: dict[str, ModelUsage] = {}
        for name, part in usage.models.items():
            model = self._model_name(name)
            used[model] = used.get(model, ModelUsage()) + part
        return Usage(used)


def _is_read(line: bytes) -> bool:
    """Whether a line may be relevant."""
    kind = _LEADING_TYPE.match(line)
    if kind is not None and kind[1] not in _READ_TYPES:
        return False
    if b'"attachment":' in line[:200]:
        return False
    return b'"tool_use_id"' not in line or b'"assistant"' in line


def _title(title: object) -> str | None:
    return (clip_line(clean(title), MAX_TITLE) or None) if isinstance(title, str) else None


def _day(timestamp: object) -> str:
    day = timestamp[:10] if isinstance(timestamp, str) else ""
    return day if _IS_DAY.fullmatch(day) else NO_DAY


def _tokens(usage: Mapping[str, Any]) -> Row:
    names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return [*(read_number(usage, name) for name in names), 0.0]


def _row(used: ModelUsage) -> Row:
    return [
        used.input_tokens,
        used.output_tokens,
        used.cache_read_tokens,
        used.cache_creation_tokens,
        used.cost_usd,
    ]


def _written(usage: Usage) -> dict[str, Any]:
    """In the CLI's format, which `read_usage` reads."""
    names = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheCreationInputTokens", "costUSD")
    return {model: dict(zip(names, _row(used), strict=True)) for model, used in usage.models.items()}


def _add(rows: dict[str, Row], day: str, model: str, more: Row) -> None:
    key = f"{day} {model}"
    if key not in rows and len(rows) >= _MAX_ROWS:
        key = f"{NO_DAY} {model}"
    rows[key] = [old + new for old, new in zip(rows.get(key, [0.0] * 5), more, strict=True)]


def _days_by_model(answers: Iterable[tuple[str, Row]]) -> dict[str, dict[str, float]]:
    """Each model's usage per day; in one pass, because there may be as many models as answers."""
    days: dict[str, dict[str, float]] = {}
    for key, row in answers:
        if key[:10] != NO_DAY:
            days.setdefault(key[11:], {})[key[:10]] = sum(row)
    return days


def _shares(days: Mapping[str, float], otherwise: str) -> list[tuple[str, float]]:
    """The days on which a model was used, with the share of each. Subagents may use models that have no answer here."""
    total = sum(days.values())
    return [(day, weight / total) for day, weight in days.items()] if total else [(otherwise, 1.0)]


def summarize(path: str, size: int, before: TranscriptSummary | None = None) -> TranscriptSummary:
    """The summary of a transcript of this size; `before` is the summary of a shorter version, which is continued.
    Raises OSError if it cannot be read: a partial result is not a summary."""
    if size > _WHOLE_UP_TO:
        first, last = ends_of(path, _END, _END)
        summary = TranscriptSummary(_folder_of_file(path), whole=False)
        summary.feed(first.split(b"\n")[:-1])
        summary.feed(last.split(b"\n")[1:])
        return summary
    # The size alone does not show that a transcript was rewritten and has become longer since.
    goes_on = before is not None and before.whole and before.before_offset == _checksum(path, before.offset)
    summary = before if before is not None and goes_on else TranscriptSummary(_folder_of_file(path))
    for line, offset in lines_from(path, summary.offset):
        summary.feed((line,))
        summary.offset = offset
    # After reading, from the bytes that were read last: the file may have grown since, which is harmless.
    summary.before_offset = _checksum(path, summary.offset)
    return summary


def _checksum(path: str, offset: int) -> int:
    """The checksum of the last bytes before an offset."""
    start = max(0, offset - _CHECKED)
    with open_regular(path) as file:
        file.seek(start)
        return zlib.crc32(file.read(offset - start))


def _folder_of_file(path: str) -> str:
    return os.path.basename(os.path.dirname(path))


def dump(summary: TranscriptSummary) -> str:
    return json.dumps(vars(summary), ensure_ascii=False, separators=(",", ":"))


def load(text: str) -> TranscriptSummary | None:
    """None if the data is not a summary of this version."""
    try:
        return TranscriptSummary(**json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return None
