"""What a question panel says: whose question it is, all of it, and the keys that answer it. Pure."""

from rich.console import Group, RenderableType
from rich.style import Style
from rich.text import Text

from ..client.open_questions import OpenQuestion
from ..client.question_view import ACCEPT_EDITS, question_lines
from ..model.question import Choice, QuestionKind
from ..model.text import clip_line, visible
from .choosing import Choosing
from .drawing import DrawnAtAnyWidth, DrawnMarkdown, Palette, styled_lines

_KINDS = {QuestionKind.PERMISSION: "Permission", QuestionKind.PLAN_REVIEW: "Plan"}


def head_line(asked: OpenQuestion, palette: Palette, *, elsewhere: bool, also_here: bool) -> Text:
    """What is asked and by which session. One of another session than the one on the screen says so first, and whether
    this one asks too."""
    session = asked.session
    title = visible(clip_line(session.get("displayText") or session["sessionId"][:8], 60))
    kind = _KINDS.get(asked.question.kind, "Question")
    line = Text(no_wrap=True, overflow="ellipsis")
    if elsewhere:
        line.append(" another session ", palette.style("ask") + palette.style("found")).append(" ")
    line.append(f"{kind} · {title}", palette.style("ask"))
    return line.append(" · this session asks too: Esc", palette.style("bad")) if elsewhere and also_here else line


def question_body(
    asked: OpenQuestion, choosing: Choosing | None, palette: Palette, *, as_source: bool
) -> RenderableType:
    """All of a question; of one with several parts, the part that is being answered."""
    question = asked.question
    if choosing is not None:
        return DrawnAtAnyWidth(_choice(choosing, palette), palette)
    plan = question.tool_input.get("plan")
    if question.kind is QuestionKind.PLAN_REVIEW and isinstance(plan, str) and not as_source:
        return DrawnMarkdown(visible(plan), palette)
    return styled_lines(question_lines(question), palette)


def _choice(choosing: Choosing, palette: Palette) -> RenderableType:
    part = choosing.part
    if part is None:
        return Text("This question has no parts that could be answered; it can be denied.")
    head = Text(" ".join(filter(None, (visible(part.question), choosing.progress))), palette.style("head"))
    return Group(head, *(_option(part, number, choosing, palette) for number in range(len(part.options))))


def _option(part: Choice, number: int, choosing: Choosing, palette: Palette) -> Text:
    label, description = part.options[number]
    box = ("[x]" if number in choosing.marked else "[ ]") if part.several else ""
    pointer = "❯" if number == choosing.cursor else " "
    text = Text(f"{pointer} {number + 1} {box}{' ' if box else ''}{visible(label)}", Style(meta={"option": number}))
    if description and description != label:
        text.append(f"  {visible(description)}", palette.style("quiet"))
    return text


def answer_keys(asked: OpenQuestion, *, elsewhere: bool) -> str:
    """The keys that answer a question while its panel has the focus."""
    go = ", o: open that session" if elsewhere else ""
    match asked.question.kind:
        case QuestionKind.PERMISSION:
            session = ", s: for this session" if asked.for_session else ""
            return f"a: allow once{session}, d: deny with a reason{go}, PgUp/PgDn: scroll, Esc: later"
        case QuestionKind.PLAN_REVIEW:
            edits = ", e: approve and accept edits" if ACCEPT_EDITS in asked.question.modes else ""
            return f"a: approve{edits}, d: feedback, m: as written{go}, PgUp/PgDn: scroll, Esc: later"
    return f"1-9 or ↑↓: choose, Space: mark, Enter: answer, t: type, d: decline{go}, Esc: later"


def is_answer_possible(asked: OpenQuestion, action: str, parameters: tuple[object, ...]) -> bool:
    """Whether an action of the panel makes sense for this question."""
    kind = asked.question.kind
    if action == "decide":
        possible = {
            "allow": kind is not QuestionKind.USER_QUESTION,
            "session": kind is QuestionKind.PERMISSION and asked.for_session,
            "edits": kind is QuestionKind.PLAN_REVIEW and ACCEPT_EDITS in asked.question.modes,
        }
        return possible[str(parameters[0])]
    if action in ("say", "mark", "confirm"):
        return kind is QuestionKind.USER_QUESTION
    return action != "source" or kind is QuestionKind.PLAN_REVIEW
