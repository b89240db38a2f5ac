"""`ps`, `questions`, `show`, `logs`, `answer`, `interrupt` and `cancel`: the sessions of a running server from the
shell.

`Asking` asks a person a question line by line; it is pure and receives the typed lines. A line that is not an answer
changes nothing, and never counts as a yes.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from ..client.conventions import (
    ExitCode,
    add_json,
    agreed,
    failed,
    positive,
    print_json,
    print_outcome,
    seconds,
    table,
)
from ..client.live_sessions import LiveSessions, OpenQuestion, OpenQuestions, Report, machine_name
from ..client.styled_lines import NoAnswer, Style, decide, question_lines
from ..client.targets import add_target, at_running_server, at_server
from ..core.errors import InvalidArgument
from ..core.model.options import BYPASS
from ..core.model.question import Choice, QuestionKind
from ..core.model.states import BUSY_STATUSES
from ..core.model.text import age, clip, clip_line, local_time, sharing_line, visible
from ..core.questions.kinds import Reaction, kind_class
from ..core.sessions.stored.session_row import SessionRow


def add_verb(commands: Any, name: str, summary: str, run: Callable[[argparse.Namespace], int]) -> Any:
    """A command that is a client of a server."""
    parser = commands.add_parser(name, help=summary)
    add_target(parser)
    add_json(parser)
    parser.set_defaults(run=run)
    return parser


def add_session(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", help="session id, the start of the id, or title")


# -- what is printed ---------------------------------------------------------------------------------------------------


_COLORS = {Style.HEAD: "1", Style.REMOVED: "31", Style.ADDED: "32", Style.SAME: "2"}
_MAX_LENGTH = 60
"""Characters of a title or a question in a table."""


def has_color(stream: TextIO) -> bool:
    """Whether a stream is a terminal with colors; not with NO_COLOR or on a dumb terminal."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_question(asked: OpenQuestion, stream: TextIO | None = None, *, with_choices: bool = True) -> None:
    """Print a whole question, beginning with its session; without the choices if `Asking` asks them one by one."""
    stream = stream or sys.stdout
    color = has_color(stream)
    print(f"[{asked.id}] {session_name(asked.session)}", file=stream)
    question = asked.question
    if not with_choices and question.choices:
        return
    for text, style in question_lines(question):
        code = _COLORS.get(style) if color else None
        print(f"\x1b[{code}m{text}\x1b[0m" if code else text, file=stream)
    stream.flush()


def session_name(session: SessionRow) -> str:
    """The id of a listed session and, where known, title and directory."""
    title, project = session.display_text, session.project_directory
    named = f" {visible(clip_line(title, _MAX_LENGTH))}" if title else ""
    return f"session {session.session_id[:8]}{named}" + (f" in {visible(project)}" if project else "")


def session_table(rows: Iterable[SessionRow]) -> list[str]:
    """Lines of equal columns for listed sessions; in a fleet one of them has their machines."""
    listed = [*rows]
    lines = [("ID", "STATE", "AGE", "COST", "PROJECT", "QUESTION", "TITLE"), *map(_row, listed)]
    if any(session.machine for session in listed):
        machines = ("MACHINE", *(machine_name(session) or "-" for session in listed))
        lines = [(*line[:2], machine, *line[2:]) for line, machine in zip(lines, machines, strict=True)]
    return table(lines)


def _row(session: SessionRow) -> tuple[str, ...]:
    asks = session.asks or ()
    more = f" (+{len(asks) - 1})" if len(asks) > 1 else ""
    return (
        session.session_id[:8],
        _state(session),
        age(session.created or session.timestamp, time.time()),
        session.cost_text(4) or "-",
        _short_path(session.project_directory or "-"),
        visible(clip_line(asks[0], _MAX_LENGTH)) + more if asks else "",
        (f"[{visible(session.owner)}] " if session.owner else "")
        + visible(clip_line(session.display_text or "", _MAX_LENGTH)),
    )


def _state(session: SessionRow) -> str:
    """The state of a listed session, and until when if a usage limit has stopped it."""
    if session.continues_at:
        return f"continues at {local_time(session.continues_at, time.time())}"
    if session.status == "limit_reached" and session.resets_at:
        return f"{session.status}, resets at {local_time(session.resets_at, time.time())}"
    return f"{session.status or '-'} (terminal)" if session.in_terminal else session.status or "-"


def _short_path(path: str) -> str:
    """The end of a long path, which is more informative than its beginning."""
    home = os.path.expanduser("~")
    path = f"~{path[len(home) :]}" if path == home or path.startswith(f"{home}{os.sep}") else path
    return visible(path if len(path) <= _MAX_LENGTH // 2 else f"...{path[3 - _MAX_LENGTH // 2 :]}")


# -- asking -----------------------------------------------------------------------------------------------------------


class Asking:
    """One question while it is being answered. A question with several parts takes a line for each."""

    def __init__(self, asked: OpenQuestion) -> None:
        self.asked = asked
        self._answers: list[str | list[str]] = []

    @property
    def prompt(self) -> str:
        """The prompt for the next line."""
        match self.asked.question.kind:
            case QuestionKind.PERMISSION:
                session = ", allow for this [s]ession" if Reaction.SESSION in self.asked.reactions else ""
                return f"[a]llow once{session}, or [d]eny REASON? "
            case QuestionKind.PLAN_REVIEW:
                edits = ", approve and accept [e]dits" if Reaction.EDITS in self.asked.reactions else ""
                return f"[a]pprove{edits}, or [d]eny FEEDBACK? "
            case QuestionKind.USER_QUESTION | QuestionKind.SERVER_FORM:
                return self._choice_prompt()

    def take(self, line: str) -> dict[str, Any] | None:
        """The arguments of `claude_respond` for a typed line; None if another part has to be answered first. NoAnswer
        if the line is no answer."""
        if self._choices:
            return self._choose(line)
        # No default: an empty line is refused by `decide`, and never counts as a yes.
        decision, _, text = line.strip().partition(" ")
        return decide(self.asked, decision.lower(), text.strip())

    # -- questions with choices -------------------------------------------------------------------------------

    @property
    def _choices(self) -> tuple[Choice, ...]:
        return self.asked.question.choices

    def _choice_prompt(self) -> str:
        if not self._choices:
            return "[d]eny? "
        choice = self._choices[len(self._answers)]
        options = "".join(
            f"  {number}  {visible(label)}{f': {visible(description)}' if description not in ('', label) else ''}\n"
            for number, (label, description) in enumerate(choice.options, 1)
        )
        several = "numbers, such as 1,3," if choice.several else "a number"
        how = f"{several} or text" if options else "text"
        return f"Claude Code asks: {visible(choice.question)}\n{options}{how}, or [d]eny? "

    def _choose(self, line: str) -> dict[str, Any] | None:
        text = line.strip()
        if not text:
            raise NoAnswer("Type an answer.")
        if text.lower() in ("d", "deny"):
            return {"decision": "deny"}
        self._answers.append(_chosen(self._choices[len(self._answers)], text))
        return {"decision": "allow", "answers": self._answers} if len(self._answers) == len(self._choices) else None


def _chosen(choice: Choice, text: str) -> str | list[str]:
    """The labels for the typed numbers; any other text unchanged."""
    numbers = [part.strip() for part in text.split(",")]
    if not choice.labels or not all(number.isascii() and number.isdigit() and len(number) < 4 for number in numbers):
        return text
    indices = [int(number) for number in numbers]
    if not all(1 <= index <= len(choice.labels) for index in indices) or (len(indices) > 1 and not choice.several):
        raise NoAnswer(f"Choose {'' if choice.several else 'one '}from 1 to {len(choice.labels)}.")
    labels = [choice.labels[index - 1] for index in indices]
    return labels if choice.several else labels[0]


# -- watching ---------------------------------------------------------------------------------------------------------


_NONE = "No sessions on this server; `claude-code-mcp sessions` lists those on disk."
_CLEAR = "\x1b[H\x1b[J"


def add_to(commands: Any) -> None:
    _add_looking(commands)
    _add_steering(commands)


def _add_looking(commands: Any) -> None:
    ps = add_verb(commands, "ps", "list the sessions of the server: state, open question, cost", at_running_server(_ps))
    ps.add_argument("--all", action="store_true", help="include sessions without a running process")
    ps.add_argument("--ids", action="store_true", help="print only the complete ids")
    ps.add_argument("--watch", action="store_true", help="update until Ctrl-C; with --json, one line per change")
    ps.add_argument(
        "--interval",
        type=seconds,
        default=2.0,
        metavar="SECONDS",
        help="seconds between updates with --watch (default 2)",
    )
    add_verb(commands, "questions", "print all open questions in full", at_running_server(_questions))
    show = add_verb(commands, "show", "print the state, open questions and result of a session", at_server(_show))
    add_session(show)
    show.add_argument("--transcript", action="store_true", help="print the conversation instead of the events")
    show.add_argument("--full", action="store_true", help="with --transcript: complete inputs, results and diffs")
    logs = add_verb(commands, "logs", "print the output of a session", at_running_server(_logs))
    add_session(logs)
    logs.add_argument("--lines", type=positive, default=50, metavar="N", help="the last N lines (default 50)")
    logs.add_argument("--follow", action="store_true", help="keep printing new lines until Ctrl-C")


# -- ps -----------------------------------------------------------------------------------------------------------


def _ps(sessions: LiveSessions, arguments: argparse.Namespace) -> int:
    if not arguments.watch:
        _print_sessions(_listed(sessions, arguments), arguments)
        return 0
    shown = None
    while True:
        listed = _listed(sessions, arguments)
        if arguments.json and listed != shown:
            print(json.dumps([session.as_json() for session in listed], ensure_ascii=False), flush=True)
        # On a terminal in any case: the ages in the table grow although nothing has changed.
        elif not arguments.json and (sys.stdout.isatty() or listed != shown):
            print(_CLEAR if sys.stdout.isatty() else "", end="")
            _print_sessions(listed, arguments)
            sys.stdout.flush()
        shown = listed
        time.sleep(arguments.interval)  # of a change in any session at all there is no event


def is_live(session: SessionRow) -> bool:
    """Whether `ps` lists a session without `--all`. This includes sessions whose machine disappeared during a turn, and
    sessions that continue after a usage limit."""
    is_busy = session.is_active or session.active_status in BUSY_STATUSES
    return is_busy or session.machine_gone or session.continues_at is not None


def _listed(sessions: LiveSessions, arguments: argparse.Namespace) -> list[SessionRow]:
    return [session for session in sessions.live() if arguments.all or is_live(session)]


def _print_sessions(listed: list[SessionRow], arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json([session.as_json() for session in listed])
    elif arguments.ids:
        print("".join(f"{session.session_id}\n" for session in listed), end="")
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        lines = session_table(listed) if listed else [_NONE]
        print("\n".join(line if width is None else clip(line, width) for line in lines))


# -- questions ----------------------------------------------------------------------------------------------------


def _questions(sessions: LiveSessions, arguments: argparse.Namespace) -> int:
    asked = OpenQuestions(sessions).all()
    if arguments.json:
        print_json([_question_data(entry) for entry in asked])
        return 0
    for number, entry in enumerate(asked):
        print("\n" if number else "", end="")
        print_question(entry)
    if not asked:
        print("No open questions.")
    return 0


def _question_data(asked: OpenQuestion) -> dict[str, Any]:
    question = asked.question
    return {
        "inputId": asked.id,
        "sessionId": asked.session.session_id,
        "type": kind_class(question.kind).wire_type,
        "toolName": question.tool_name,
        "toolInput": question.tool_input,
        "description": question.description,
        "canAllowForSession": asked.for_session,
        "sessionRules": question.session_rules,
        "expiresAt": asked.expires_at,
    }


# -- one session --------------------------------------------------------------------------------------------------


def _show(sessions: LiveSessions, arguments: argparse.Namespace) -> int:
    session_id = sessions.find(arguments.session)
    if arguments.transcript:
        return _show_transcript(sessions, session_id, arguments)
    report = sessions.status(session_id)
    if arguments.json:
        print_json({**report, "result": sessions.result(report) or None})
        return 0
    print("\n".join(_summary(report)))
    for asked in OpenQuestions(sessions).within(report):
        print()
        print_question(asked)
    result = sessions.result(report)
    print(f"\n{visible(result)}\n" if result else "", end="")
    return 0


def _show_transcript(sessions: LiveSessions, session_id: str, arguments: argparse.Namespace) -> int:
    pages = sessions.transcript(session_id, full=arguments.full)
    if arguments.json:
        print_json(list(pages))
        return 0
    for page in pages:
        print(visible(page.get("transcript") or ""))
    return 0


def _summary(report: Report) -> list[str]:
    """The facts about a session, one on each line."""
    tokens, continues_at = report.get("tokens"), (report.get("limit") or {}).get("continuesAt")
    facts = {
        "session": report["sessionId"],
        "status": report["status"],
        "cost": f"${report['costUsd']:.4f}" if "costUsd" in report else None,
        "tokens": f"{tokens['input']} in, {tokens['output']} out" if tokens else None,
        "turns": report.get("turnCount"),
        "stalled": f"no output for {report['stalledSeconds']} s" if report.get("stalledSeconds") else None,
        "retrying": report.get("retrying"),
        "queued": report.get("queued"),
        "owner": report.get("owner"),
        "shared": f"with {sharing_line(shared_with)}" if (shared_with := report.get("sharedWith")) else None,
        "error": error_text(report),
        "continues": f"at {local_time(continues_at, time.time())}" if continues_at else None,
    }
    return [f"{name:<9} {visible(str(value))}" for name, value in facts.items() if value is not None]


def error_text(report: Report) -> str | None:
    """Why the last turn failed."""
    error = report.get("error")
    return f"{error['code']}: {error['message']}" if error else None


def _logs(sessions: LiveSessions, arguments: argparse.Namespace) -> int:
    session_id = sessions.find(arguments.session)
    for report in sessions.follow(session_id, lines=arguments.lines):
        for line in sessions.lines(report):
            print(json.dumps({"line": line}, ensure_ascii=False) if arguments.json else visible(line))
        sys.stdout.flush()
        if not arguments.follow:
            break
    return 0


# -- steering ---------------------------------------------------------------------------------------------------------


_DECISIONS = {
    "allow": "allow once; approve a plan",
    "session": "allow this and similar calls in this session",
    "edits": "approve a plan and accept edits from then on",
    "deny": "deny; TEXT is the reason, or what to change in the plan",
    "say": "answer Claude's question: one TEXT per part, an offered label or your own",
}


def _add_steering(commands: Any) -> None:
    answer = add_verb(commands, "answer", "show an open question and answer it", at_running_server(_answer))
    answer.formatter_class = argparse.RawDescriptionHelpFormatter
    listed = "".join(f"\n  {name:<9}{summary}" for name, summary in _DECISIONS.items())
    answer.description = f"Shows the question, and answers it with one of these decisions:\n{listed}"
    answer.add_argument(
        "question", metavar="ID", help="question id, the start of the id, or a session with exactly one question"
    )
    answer.add_argument(
        "decision",
        nargs="?",
        choices=sorted(_DECISIONS),
        metavar="DECISION",
        help="the decision; without it, you are asked",
    )
    answer.add_argument("text", nargs="*", metavar="TEXT", help="text for deny and say")
    interrupt = add_verb(
        commands,
        "interrupt",
        "stop the current turn of a session; the session stays usable",
        at_running_server(_interrupt),
    )
    add_session(interrupt)
    cancel = add_verb(commands, "cancel", "cancel a session permanently", at_running_server(_cancel))
    add_session(cancel)
    bypass = add_verb(commands, "bypass", f"switch the mode {BYPASS} on or off", at_server(_bypass))
    bypass.add_argument(
        "switch", nargs="?", choices=("on", "off"), metavar="on|off", help="without a value, prints the current one"
    )
    bypass.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def _answer(sessions: LiveSessions, arguments: argparse.Namespace) -> int:
    questions = OpenQuestions(sessions)
    asked = questions.find(arguments.question)
    # Before anything is decided; a question with choices is put part by part where it is asked.
    is_asked = arguments.decision is None and sys.stdin.isatty()
    print_question(asked, sys.stderr if arguments.json else sys.stdout, with_choices=not is_asked)
    try:
        if arguments.decision is None:
            decision = _asked_at_terminal(asked)
        elif arguments.decision == "say":
            parts = len(asked.question.choices)
            if Reaction.SAY not in asked.reactions:
                raise NoAnswer("say: only for questions that Claude asks. Answer this one with allow, or deny TEXT.")
            if len(arguments.text) != parts:
                wanted = "1 TEXT" if parts == 1 else f"{parts} TEXTs, one for each part"
                raise NoAnswer(f"say: this question needs {wanted}.")
            decision = {"decision": "allow", "answers": arguments.text}
        else:
            decision = decide(asked, arguments.decision, " ".join(arguments.text))
    except NoAnswer as error:
        raise InvalidArgument(str(error)) from None
    if decision is None:
        return failed("Nothing was answered.")
    summary = ", ".join(visible(text) for text in decision.get("answers") or ())
    if not summary:
        summary = decision["decision"] + (" for this session" if decision.get("scope") == "session" else "")
    return print_outcome(arguments, questions.answer(asked, decision), f"Answered: {summary}.")


def _asked_at_terminal(asked: OpenQuestion) -> dict[str, Any] | None:
    """Ask until there is an answer; None at the end of the input."""
    if not sys.stdin.isatty():
        raise InvalidArgument("Not a terminal: pass the answer as an argument.")
    asking = Asking(asked)
    while True:
        print(asking.prompt, end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return None
        try:
            decision = asking.take(line)
        except NoAnswer as error:
            print(error, file=sys.stderr)
            continue
        if decision is not None:
            return decision


def _interrupt(sessions: LiveSessions, arguments: argparse.Namespace) -> int:
    report = sessions.interrupt(sessions.find(arguments.session))
    return print_outcome(arguments, report, f"{report['sessionId']}: {report['status']}")


_BYPASS_QUESTION = (
    "In this mode sessions run every command and change every file without asking, until the server stops or it is "
    "switched off. Switch it on?"
)


def _bypass(sessions: LiveSessions, arguments: argparse.Namespace) -> int:
    if arguments.switch == "on" and not arguments.yes and not agreed(_BYPASS_QUESTION):
        return failed("It stays off.", ExitCode.REFUSED)
    report = sessions.switch_bypass(None if arguments.switch is None else arguments.switch == "on")
    return print_outcome(arguments, report, report["message"])


def _cancel(sessions: LiveSessions, arguments: argparse.Namespace) -> int:
    session_id = sessions.find(arguments.session)
    return print_outcome(arguments, sessions.cancel(session_id), f"{session_id}: cancelled")
