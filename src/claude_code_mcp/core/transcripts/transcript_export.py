"""A conversation as text, Markdown, or one HTML page.

Linear in the output. Only `read_page` reads a file and blocks on the disk. In HTML, everything from the transcript is
escaped, including invisible characters, and the page's own policy forbids loading or running anything. The model's text
is rendered as Markdown (`markdown_html.py`).
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from ..model.text import clip_line, page_of, visible
from .conversation import ConversationTurn, Item, read_turn
from .outline import Outline

_MAX_LINE = 160
_CURSOR = re.compile(r"(-?[0-9]{1,9})(?:\.([0-9]{1,12}))?")
_BACKTICKS = re.compile("`{3,}")


@dataclass(frozen=True, slots=True)
class Detail:
    """How much of a conversation is written."""

    full: bool = False
    """Complete inputs and results of tools instead of one line each."""
    thinking: bool = False


@dataclass(frozen=True, slots=True)
class TextPage:
    """A page of a conversation. All pages in order are the whole."""

    text: str
    next_cursor: str | None
    """None on the last page."""


def read_page(
    path: str, outline: Outline, cursor: str, size: int, detail: Detail, redact: Callable[[Any], Any]
) -> TextPage:
    """About `size` characters from a cursor: `7` is the seventh turn, `-1` the last one, `7.2000` the seventh after its
    first 2000 characters. A turn is split only if it does not fit on a page. Raises ValueError for an invalid cursor.
    `redact` removes secrets before anything is cut."""
    turn, offset = _position(cursor, len(outline.turns))
    parts: list[str] = []
    left = size
    while turn <= len(outline.turns):
        # Redacted before it is cut: half of a secret at the end of a page would not be recognized.
        text = turn_text(turn, without_secrets(read_turn(path, outline.turns[turn - 1]), redact), detail)
        piece = page_of(text, offset, max(left, 1))
        if piece.next_offset is not None and parts:
            return TextPage("\n".join(parts), str(turn))
        parts.append(piece.text)
        if piece.next_offset is not None:
            return TextPage("\n".join(parts), f"{turn}.{piece.next_offset}")
        left -= len(piece.text)
        turn, offset = turn + 1, 0
    return TextPage("\n".join(parts), None)


def _position(cursor: str, turns: int) -> tuple[int, int]:
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise ValueError("not a cursor")
    turn = int(found[1])
    return (turn if turn > 0 else max(1, turns + 1 + turn)), int(found[2] or 0)


def without_secrets(turn: ConversationTurn, redact: Callable[[Any], Any]) -> ConversationTurn:
    """The turn, redacted."""
    items = [item_without_secrets(item, redact) for item in turn.items]
    return replace(facts_without_secrets(turn, redact), prompt=redact(turn.prompt), items=items)


def facts_without_secrets(turn: ConversationTurn, redact: Callable[[Any], Any]) -> ConversationTurn:
    """The turn with its facts redacted; prompt and items are unchanged."""
    return replace(turn, at=redact(turn.at), message_id=redact(turn.message_id), model=redact(turn.model))


def item_without_secrets(item: Item, redact: Callable[[Any], Any]) -> Item:
    """The item, redacted: a session's commands may have written everything in it."""
    result = redact(item.result)
    return replace(
        item,
        text=redact(item.text),
        name=redact(item.name),
        input=redact(item.input),
        result=result,
        # A color in the middle of a secret would hide it: where there is one, the result without colors must do.
        output=redact(item.output) if result == item.result else "",
        diff=redact(item.diff),
        agent=redact(item.agent),
        id=redact(item.id),
    )


def turn_text(number: int, turn: ConversationTurn, detail: Detail) -> str:
    """One turn, counted from 1, under its own heading."""
    return "\n".join(_turn_lines(number, turn, detail)).strip() + "\n"


def markdown(
    title: str, facts: Iterable[tuple[str, str]], turns: Iterable[ConversationTurn], detail: Detail
) -> Iterator[str]:
    """A whole conversation, in pieces."""
    yield f"# {_plain(title)}\n\n"
    yield "".join(f"- {name}: {_plain(value)}\n" for name, value in facts)
    for number, turn in enumerate(turns, 1):
        yield "\n" + turn_text(number, turn, detail)


def _plain(text: str) -> str:
    """A name on one line of Markdown, without HTML."""
    return escape(visible(" ".join(text.split())), quote=False)


def _turn_lines(number: int, turn: ConversationTurn, detail: Detail) -> Iterator[str]:
    yield f"## {number} · {(turn.at or '')[:19].replace('T', ' ')}".rstrip(" ·")
    yield ""
    if turn.prompt is not None:
        yield from (f"> {line}".rstrip() for line in turn.prompt.splitlines())
        yield ""
    for item in turn.items:
        yield from _item_lines(item, detail)


def _item_lines(item: Item, detail: Detail) -> Iterator[str]:
    match item.kind:
        case "text":
            yield item.text.strip()
            yield ""
        case "message":
            yield from (f"> {line}".rstrip() for line in item.text.splitlines())
            yield ""
        case "thinking" if detail.thinking and item.text.strip():
            yield from _quoted("thinking", item.text)
        case "note":
            yield f"*{item.text}*"
            yield ""
        case "tool":
            yield from _full_call(item) if detail.full else _short_call(item)


def _short_call(item: Item) -> Iterator[str]:
    yield clip_line(f"[{item.name}] {arguments(item.input)}", _MAX_LINE)
    changes = f" {_changed(item.diff)}" if item.diff else ""
    if item.status:
        yield clip_line(f"[{item.status}]{changes} {item.result}", _MAX_LINE)
    if item.agent:
        yield f"[subagent {item.agent}]"
    yield ""


def _changed(diff: str) -> str:
    lines = diff.splitlines()
    return f"+{sum(line.startswith('+') for line in lines)} -{sum(line.startswith('-') for line in lines)}"


def _full_call(item: Item) -> Iterator[str]:
    agent = f", subagent {item.agent}" if item.agent else ""
    yield f"**{_plain(item.name)}** ({item.status or 'no result'}{agent})"
    yield ""
    yield from _quoted("", full_input(item.input))
    if item.diff:
        yield from _quoted("diff", item.diff)
    elif item.result:
        yield from _quoted("", item.result)


def _quoted(kind: str, text: str) -> Iterator[str]:
    """A block that its text cannot end: the fence is longer than any in it."""
    fence = "`" * max(3, 1 + max((len(run) for run in _BACKTICKS.findall(text)), default=0))
    yield f"{fence}{kind}"
    yield text.strip("\n")
    yield fence
    yield ""


def arguments(tool_input: object) -> str:
    """The value of a single argument, such as a command or a path; otherwise all arguments with their names."""
    fields = tool_input if isinstance(tool_input, dict) else {}
    texts = {
        str(name): value if isinstance(value, str) else _json(value)
        for name, value in fields.items()
        if name != "description"
    }
    if len(texts) == 1:
        return next(iter(texts.values()))
    return ", ".join(f"{name}={text}" for name, text in texts.items())


def full_input(tool_input: object) -> str:
    """A tool's complete input: a command unchanged, anything else field by field."""
    if not isinstance(tool_input, dict):
        return _json(tool_input)
    if isinstance(tool_input.get("command"), str):
        return str(tool_input["command"])
    parts = []
    for name, value in tool_input.items():
        text = value if isinstance(value, str) else _json(value)
        parts.append(f"{name}:\n{text}" if "\n" in text else f"{name}: {text}")
    return "\n".join(parts)


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return "[not shown]"


_STYLE = """
:root{color-scheme:light dark;--bg:#fbfaf7;--card:#fff;--ink:#23211d;--soft:#6d685e;--line:#e4dfd5;--accent:#b4552d;
--code:#f3f0e9;--plus:#1d6f3c;--plusbg:#e6f4ea;--minus:#a12622;--minusbg:#fbe9e7}
@media(prefers-color-scheme:dark){:root{--bg:#191816;--card:#211f1c;--ink:#e9e5dc;--soft:#a09a8d;--line:#37332d;
--accent:#e08a5f;--code:#2a2723;--plus:#8fd3a5;--plusbg:#1c3324;--minus:#f0a29c;--minusbg:#3c2220}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.6 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:52rem;margin:0 auto;padding:2.5rem 1.25rem 5rem}
h1{font-size:1.7rem;line-height:1.25;margin:0 0 .75rem;overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;margin:0 0 2rem;color:var(--soft);font-size:.9rem}
dt{font-weight:600}dd{margin:0;overflow-wrap:anywhere}
section{margin:0 0 2rem;padding-top:1.25rem;border-top:1px solid var(--line)}
section>h2{font-size:.8rem;font-weight:600;letter-spacing:.04em;color:var(--soft);margin:0 0 .75rem}
section>h2 a{color:inherit;text-decoration:none}
.prompt{background:var(--card);border:1px solid var(--line);border-left:4px solid var(--accent);border-radius:.5rem;
padding:.75rem 1rem;margin:0 0 1rem;white-space:pre-wrap;overflow-wrap:anywhere}
.text{overflow-wrap:anywhere}.text>*{margin:0 0 .8rem}.text :is(h3,h4,h5,h6){font-size:1rem;margin:1.2rem 0 .6rem}
.text h3{font-size:1.12rem}.text li>p{margin:.3rem 0}.text a{color:var(--accent)}
.text ul,.text ol{padding-left:1.4rem}.text li{margin:.15rem 0}
details+.text{margin-top:1rem}
.text blockquote{border-left:3px solid var(--line);margin-left:0;padding-left:.9rem;color:var(--soft)}
.text hr{border:0;border-top:1px solid var(--line)}
.text table{border-collapse:collapse;font-size:.95em}.text th,.text td{border:1px solid var(--line);
padding:.3rem .65rem;text-align:left;vertical-align:top}.text th{background:var(--code)}
.note{color:var(--soft);font-style:italic;margin:0 0 .8rem}
details{background:var(--card);border:1px solid var(--line);border-radius:.5rem;margin:0 0 .6rem}
summary{cursor:pointer;padding:.45rem .8rem;font:13px/1.5 ui-monospace,Menlo,Consolas,monospace;overflow:hidden;
text-overflow:ellipsis;white-space:nowrap}
summary b{color:var(--accent)}summary .error{color:var(--minus)}
details>div{padding:0 .8rem .6rem}
pre{background:var(--code);border-radius:.4rem;padding:.7rem .85rem;margin:.4rem 0;overflow-x:auto;max-height:32rem;
font:13px/1.5 ui-monospace,Menlo,Consolas,monospace;white-space:pre-wrap;overflow-wrap:anywhere}
code{font:.88em ui-monospace,Menlo,Consolas,monospace;background:var(--code);border-radius:.25rem;padding:.1em .3em}
pre code{font:inherit;background:none;padding:0}
pre .plus,pre .minus,pre .at{display:block}.plus{color:var(--plus);background:var(--plusbg)}
.minus{color:var(--minus);background:var(--minusbg)}.at{color:var(--soft)}
@media print{details{break-inside:avoid}pre{max-height:none}}
"""


def page(
    title: str, facts: Iterable[tuple[str, str]], turns: Iterable[ConversationTurn], detail: Detail
) -> Iterator[str]:
    """The page, in pieces."""
    name = _safe(" ".join(title.split()))
    yield (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="referrer" content="no-referrer"><title>{name}</title><style>{_STYLE}</style></head>\n'
        f"<body><main><h1>{name}</h1><dl>"
    )
    yield "".join(f"<dt>{_safe(fact)}</dt><dd>{_safe(value)}</dd>" for fact, value in facts) + "</dl>\n"
    for number, turn in enumerate(turns, 1):
        yield from _turn(number, turn, detail)
    yield "</main></body></html>\n"


def _safe(text: str) -> str:
    return escape(visible(text))


def _turn(number: int, turn: ConversationTurn, detail: Detail) -> Iterator[str]:
    when = _safe((turn.at or "")[:19].replace("T", " "))
    yield f'<section id="turn-{number}"><h2><a href="#turn-{number}">{number}</a> {when}</h2>\n'
    if turn.prompt is not None:
        yield f'<div class="prompt">{_safe(turn.prompt)}</div>\n'
    for item in turn.items:
        yield _item(item, detail)
    yield "</section>\n"


def _item(item: Item, detail: Detail) -> str:
    match item.kind:
        case "text":
            from .markdown_html import markdown_html  # noqa: PLC0415 - importing markdown-it takes 70 ms

            return f'<div class="text">{markdown_html(item.text)}</div>\n'
        case "message":
            return f'<div class="prompt">{_safe(item.text)}</div>\n'
        case "thinking" if detail.thinking and item.text.strip():
            return _folded("<b>thinking</b>", f'<p class="note">{_safe(item.text)}</p>')
        case "note":
            return f'<p class="note">{_safe(item.text)}</p>\n'
        case "tool":
            return _call(item, detail)
    return ""


_UNDONE = {"error": "failed", "denied": "denied"}


def _call(item: Item, detail: Detail) -> str:
    file = item.input.get("file_path") if isinstance(item.input, dict) else None
    line = _safe(clip_line(file if isinstance(file, str) else arguments(item.input), _MAX_LINE))
    marks = {"ok": "", **{status: f' <span class="error">{word}</span>' for status, word in _UNDONE.items()}}
    mark = marks.get(item.status, " (no result)")
    agent = f" → subagent {_safe(item.agent)}" if item.agent else ""
    summary = f"<b>{_safe(item.name)}</b> {line}{mark}{agent}"
    shown = item.result if detail.full else clip_line(item.result, 20 * _MAX_LINE)
    body = f"<pre>{_safe(full_input(item.input))}</pre>" if not item.diff else ""
    body += f"<pre>{_diff(item.diff)}</pre>" if item.diff else f"<pre>{_safe(shown)}</pre>" if shown else ""
    return _folded(summary, body, opened=bool(item.diff))


def _folded(summary: str, body: str, *, opened: bool = False) -> str:
    return f"<details{' open' if opened else ''}><summary>{summary}</summary><div>{body}</div></details>\n"


def _diff(diff: str) -> str:
    kinds = {"+": "plus", "-": "minus", "@": "at"}
    return "".join(
        f'<span class="{kinds[line[:1]]}">{_safe(line)}</span>' if line[:1] in kinds else f"{_safe(line)}\n"
        for line in diff.splitlines()
    )
