"""`run`, `send` and `attach`: a conversation with a session in the terminal, including its questions.

One thread follows the session, another reads typed lines; both feed one queue, which the main thread processes. So a
question that another client answers is withdrawn here at once, and output never waits for typed input.

Output goes to stdout as it is produced; questions, prompts, remarks and messages of other clients go to stderr.
"""

import argparse
import contextlib
import os
import queue
import select
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from ..client.connections import CallFailed, ask_shared
from ..client.conventions import (
    ExitCode,
    exit_code_of,
    failed,
    piped_input,
    positive,
    print_json,
    print_outcome,
    standard_input,
    tool_rule,
)
from ..client.live_sessions import LiveSessions, OpenQuestion, OpenQuestions, Report, is_busy, losses
from ..client.printed_lines import PrintedLines
from ..client.styled_lines import EDITED, NoAnswer
from ..client.targets import add_own, at_server, target_of
from ..core.errors import InvalidArgument, PermissionDenied, UpstreamUnavailable
from ..core.model.options import BYPASS, PERMISSION_MODES
from ..core.model.question import QuestionKind
from ..core.model.text import cut, local_time, visible
from ..core.model.usage_limits import limit_name
from ..core.questions.kinds import ACCEPT_EDITS
from .running_sessions import Asking, add_session, add_verb, error_text, print_question

_SIGNALED = 128
"""The exit code of a command that was ended by a signal is this plus the signal's number."""
_CHUNK = 1 << 16
_KEYS = "[Enter sends what you type; Ctrl-C interrupts the turn; Ctrl-D leaves]"
_PROMPT = "> "
_MAX_MESSAGE = 4000
"""Maximum characters shown of another client's message."""
_COMPARED = 1000
"""Characters of two messages that are compared: the server may have cut one of them."""


def add_to(commands: Any) -> None:
    run = add_verb(commands, "run", "run a prompt in a new session and wait for the result", _run_logged_in)
    run.add_argument("prompt", nargs="*", metavar="PROMPT", help="the task; piped input is appended to it")
    run.add_argument("--cwd", metavar="DIR", help="working directory (default: the current one)")
    run.add_argument("--machine", metavar="NAME", help="machine of the fleet to run on; --cwd is a directory there")
    labeled = "in a fleet: run on a machine with this label; repeatable"
    run.add_argument("--label", action="append", metavar="LABEL", help=labeled)
    stays = "in a fleet: keep the session on its machine; it continues there without the fleet"
    run.add_argument("--stay", action="store_true", help=stays)
    run.add_argument("--model", metavar="NAME", help="a model, or an alias such as opus")
    modes = f"{', '.join(mode for mode in PERMISSION_MODES if mode != BYPASS)}, or {BYPASS} after `bypass on`"
    run.add_argument("--permission-mode", choices=PERMISSION_MODES, metavar="MODE", help=modes)
    allow = "allowed without asking, such as 'Bash(make *)'"
    run.add_argument("--allow", action="append", type=tool_rule, metavar="RULE", help=allow)
    run.add_argument(
        "--deny", action="append", type=tool_rule, metavar="RULE", help="rules that are denied without asking"
    )
    run.add_argument("--max-turns", type=positive, metavar="N", help="stop after N answers of the model")
    waits = "at a usage limit: end the turn (the default), or wait for the reset and continue automatically"
    run.add_argument("--on-limit", choices=("end", "wait"), help=waits)
    run.add_argument("--worktree", action="store_true", help="run in a new git worktree and branch")
    run.add_argument("--detach", action="store_true", help="print the session id and exit; the turn continues")
    add_own(run)
    _add_unattended(run)
    send = add_verb(commands, "send", "send a message to a session and wait for the result", at_server(_send))
    add_session(send)
    send.add_argument("message", nargs="*", metavar="MESSAGE", help="the message; piped input is appended to it")
    send.add_argument("--no-wait", action="store_true", help="return as soon as the message is accepted")
    add_own(send)
    _add_unattended(send)
    attach = add_verb(commands, "attach", "follow a session and type messages to it", at_server(_attach))
    add_session(attach)
    attach.add_argument(
        "--lines", type=positive, default=20, metavar="N", help="start with the last N lines (default 20)"
    )
    add_own(attach)
    attach.set_defaults(on_question="wait")


def _add_unattended(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--on-question",
        choices=("deny", "wait"),
        help="what to do with questions if there is no terminal (default: wait if another client can answer, "
        "otherwise deny at once)",
    )


def _text(parts: list[str]) -> str:
    """The message on the command line, followed by piped input."""
    piped = standard_input() if parts == ["-"] else piped_input()
    written = "" if parts == ["-"] else " ".join(parts)
    text = "\n\n".join(part for part in (written, piped) if part.strip())
    if not text:
        raise InvalidArgument("Nothing to send: pass a prompt or message, or pipe it in.")
    return text


# -- the verbs ----------------------------------------------------------------------------------------------------


def _run_logged_in(arguments: argparse.Namespace) -> int:
    """Execute `run`, unless its turn would certainly fail for lack of a login, which is reported before anything is
    started. A running server is not checked: its sessions may be elsewhere, and it needs no start."""
    target = target_of(arguments)
    if not arguments.url and (arguments.own or ask_shared(os.environ, "status", target.arguments) is None):
        from .doctor import missing_login  # noqa: PLC0415 - not where a server runs

        problem = missing_login(arguments.config)
        if problem:
            return failed(problem)
    return at_server(_run)(arguments)


def _run(sessions: LiveSessions, arguments: argparse.Namespace) -> int:
    # A path of this machine means nothing on another one: there it is used as written, or that machine's default
    # applies.
    is_remote = arguments.machine is not None or arguments.label
    options = {
        "workingDirectory": arguments.cwd if is_remote else os.path.abspath(arguments.cwd or "."),
        "machine": arguments.machine,
        "labels": arguments.label,
        "stayOnMachine": arguments.stay or None,
        "model": arguments.model,
        "permissionMode": arguments.permission_mode,
        "allowedTools": arguments.allow,
        "disallowedTools": arguments.deny,
        "maxTurns": arguments.max_turns,
        "onLimit": arguments.on_limit,
        "worktree": arguments.worktree or None,
    }
    prompt = _text(arguments.prompt)
    try:
        made = sessions.create(prompt, **{name: value for name, value in options.items() if value is not None})
    except CallFailed as error:
        if arguments.permission_mode == BYPASS and error.code == "PERMISSION_DENIED":
            raise PermissionDenied(f"{error} In a shell: `claude-code-mcp bypass on`.") from None
        # Every server knows the other fields; only the gateway of a fleet knows these.
        if is_remote and error.code == "INVALID_ARGUMENT" and "unknown field" in str(error):
            raise InvalidArgument(
                "There is no fleet here: --machine and --label need one (`claude-code-mcp fleet up`)."
            ) from None
        raise
    if arguments.detach:
        return print_outcome(arguments, made, made["sessionId"])
    conversation = _Conversation(sessions, made["sessionId"], arguments, sent=prompt)
    print(f"session {made['sessionId']}", file=sys.stderr, flush=True)
    return conversation.until_rest()


def _send(sessions: LiveSessions, arguments: argparse.Namespace) -> int:
    text, session_id = _text(arguments.message), sessions.find(arguments.session)
    # Before the message is sent: a later cursor would miss the turn's first output.
    cursor = None
    try:
        cursor = sessions.status(session_id, outputLines=0)["nextCursor"]
    except CallFailed as error:
        if error.code != UpstreamUnavailable.code:
            raise
    accepted = sessions.send(session_id, text)
    # Without a cursor the session's machine is gone and another one continues it; its own cursor is at the end of its
    # history.
    cursor = cursor or accepted.get("nextCursor")
    for loss in losses(accepted):
        print(visible(loss), file=sys.stderr, flush=True)
    if arguments.no_wait:
        return print_outcome(arguments, accepted, f"{accepted['sessionId']}: {accepted['status']}")
    return _Conversation(sessions, accepted["sessionId"], arguments, cursor=cursor, sent=text).until_rest()


def _attach(sessions: LiveSessions, arguments: argparse.Namespace) -> int:
    if arguments.json:
        raise InvalidArgument("attach is interactive; use `logs --follow --json` in a program.")
    session_id = sessions.find(arguments.session)
    return _Conversation(sessions, session_id, arguments, lines=arguments.lines).attached()


# -- the conversation ---------------------------------------------------------------------------------------------


class _Typed(NamedTuple):
    """A line, and the number of questions shown when it was typed: it can answer only the last of them."""

    line: str
    questions: int


class _Stopped(NamedTuple):
    """Ctrl-C was pressed, or another signal asks this command to end."""

    signal: int


_NextEvent = Report | _Typed | _Stopped | Exception | None
"""A report, a typed line, a signal, a failure of the following thread, or the end of the input."""
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class _Conversation:
    """One session on one terminal."""

    def __init__(
        self,
        sessions: LiveSessions,
        session_id: str,
        arguments: argparse.Namespace,
        cursor: str | None = None,
        lines: int = 0,
        sent: str = "",
    ) -> None:
        """`sent` is the message that started the turn."""
        self._sessions = sessions
        self._session_id = session_id
        self._json = arguments.json
        self._arguments = arguments
        self._denied = False
        """Whether a question was denied because no person could answer it."""
        self._printed = PrintedLines()
        self._last_line = ""
        """The last line of output that was printed."""
        self._sent = [_comparable(sent)] if sent else []
        """Messages sent from here that the session has not picked up yet."""
        self._seen_messages: set[str] = set()
        self._is_attached = False
        self._shows_keys = False
        """Whether the keys of `attach` must still be printed."""
        self._at_prompt = False
        """Whether the terminal's cursor is after the prompt for messages."""
        self._notice: str | None = None
        self._retrying: str | None = None
        self._continues_at: str | None = None
        """The printed time at which the session continues after a usage limit."""
        self._stopped_by = 0
        """The signal that has ended the turn."""
        self._happened: queue.SimpleQueue[_NextEvent] = queue.SimpleQueue()
        self._asking: Asking | None = None
        self._answered: set[str] = set()
        """Questions that were answered here; a report in transit may still contain them."""
        self._questions_shown = 0
        self._input_lock = threading.Lock()
        """Held while input is read or discarded, so that no line typed before a question counts as an answer."""
        self._mentioned: set[str] = set()
        """Questions that cannot be asked here, for which a line was printed."""
        self._report: Report = {"status": "running"}
        self._typing = sys.stdin is not None and sys.stdin.isatty()
        self._interrupting = False
        self._chunk_questions = 0
        # Put into the queue instead of raised: in the middle of a call it would leave the turn running.
        for number in _SIGNALS:
            # Not where it is ignored, as `nohup` does.
            if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
                signal.signal(number, self._on_signal)
        threading.Thread(target=self._follow, args=(cursor, lines), daemon=True).start()

    def until_rest(self) -> int:
        """Print events and ask questions until no turn runs; return the exit code."""
        if self._typing:
            threading.Thread(target=self._read_lines, daemon=True).start()
        for happening in self._next_events():
            if isinstance(happening, dict):
                self._show(happening)
                # The end of a turn may be reported before all of its output: then another report follows.
                at_rest = not is_busy(happening) and not happening.get("hasMore")
                if at_rest and not self._continues(happening):
                    return self._ended(happening)
            elif happening is None:
                self._input_ended()
            else:
                self._answer(happening)
        return _SIGNALED + (self._stopped_by or signal.SIGINT)

    def attached(self) -> int:
        """Print events and send typed messages until the input ends."""
        threading.Thread(target=self._read_lines, daemon=True).start()
        self._typing = True
        self._is_attached = self._shows_keys = sys.stdin is not None and sys.stdin.isatty()
        for happening in self._next_events():
            if happening is None:
                if self._at_prompt:
                    print(file=sys.stderr)
                return 0
            if isinstance(happening, dict):
                self._show(happening)
                self._continues(happening)
            else:
                self._at_prompt = False  # the typed line break has ended its line
                # A line that was typed before the question was shown is a message, not an answer.
                if self._asking is not None and happening.questions == self._questions_shown:
                    self._answer(happening)
                elif happening.line.strip():
                    self._send(happening.line)
                    continue  # the next report says whether the session takes another one
            self._prompt_for_message()
        return _SIGNALED + (self._stopped_by or signal.SIGINT)

    def _send(self, text: str) -> None:
        # Before it is sent: the session may take it up at once.
        self._sent.append(_comparable(text))
        try:
            self._sessions.send(self._session_id, text)
        except CallFailed as error:
            self._sent.remove(_comparable(text))
            self._remark(f"[{visible(str(error))}]")
            self._prompt_for_message()

    def _prompt_for_message(self) -> None:
        """Show that the session is idle and accepts a message."""
        at_rest = not is_busy(self._report) and not self._report.get("hasMore")
        if self._is_attached and at_rest and self._asking is None and not self._at_prompt:
            self._remark(_PROMPT, end="")
            self._at_prompt = True

    def _next_events(self) -> Iterator[Report | _Typed | None]:
        """The events, until a signal such as Ctrl-C arrives while no turn runs, or for the second time. The first one
        interrupts the turn."""
        while True:
            happening = self._happened.get()
            if isinstance(happening, Exception):
                raise happening
            if not isinstance(happening, _Stopped):
                yield happening
                continue
            self._stopped_by = happening.signal
            if not is_busy(self._report):
                return
            # Before anything is printed: after SIGHUP the terminal may be gone.
            self._sessions.interrupt(self._session_id)
            with contextlib.suppress(OSError):
                self._remark("\ninterrupting; press Ctrl-C again to leave at once")

    def _on_signal(self, number: int, _: object) -> None:
        """Queue the first signal, since it may arrive in the middle of anything; leave at the second one."""
        if self._interrupting:
            raise KeyboardInterrupt
        self._interrupting = True
        self._happened.put(_Stopped(number))

    # -- the threads ------------------------------------------------------------------------------------------

    def _follow(self, cursor: str | None, lines: int) -> None:
        try:
            for report in self._sessions.watch(self._session_id, cursor, lines):
                self._happened.put(report)
        except Exception as error:  # the main thread raises it
            self._happened.put(error)

    def _read_lines(self) -> None:
        """Read the descriptor directly: a thread that waits inside sys.stdin would block the end of the process."""
        left = b""
        with contextlib.suppress(OSError):
            while chunk := self._read_chunk():
                *lines, left = (left + chunk).split(b"\n")
                for line in lines:
                    self._happened.put(_Typed(line.decode("utf-8", "replace"), self._chunk_questions))
        self._happened.put(None)

    def _read_chunk(self) -> bytes:
        """The next typed bytes; empty at the end of the input."""
        while os.name == "posix":
            # Waits without the lock: the thread that shows a question needs it to discard earlier input.
            select.select([0], [], [])
            with self._input_lock:
                if select.select([0], [], [], 0)[0]:  # it may have been discarded in the meantime
                    self._chunk_questions = self._questions_shown
                    return os.read(0, _CHUNK)
        chunk = os.read(0, _CHUNK)
        self._chunk_questions = self._questions_shown
        return chunk

    # -- events -----------------------------------------------------------------------------------------------

    def _show(self, report: Report) -> None:
        self._report = report
        self._session_id = report["sessionId"]
        for line in self._sessions.lines(report):
            self._print(self._printed.other_line(line))
            self._last_line = line
        for event in report.get("events") or ():
            self._show_event(event)
        if not self._json:
            sys.stdout.flush()
        if report.get("retrying") != self._retrying:
            self._retrying = report.get("retrying")
            if self._retrying:
                self._remark(f"[{visible(self._retrying)}]")
        if report.get("notice") != self._notice:
            self._notice = report.get("notice")
            if self._notice:
                self._remark(f"[{visible(self._notice)}]")
        # Once the turn has ended, the next Ctrl-C counts as the first again.
        self._interrupting = self._interrupting and is_busy(report)
        open_ids = [entry["inputId"] for entry in report.get("pendingInputs") or ()]
        if self._asking is not None and self._asking.asked.id not in open_ids:
            self._remark("\n[the question is no longer open]")
            self._asking = None
        if self._shows_keys:  # below what happened before, and above an open question
            self._shows_keys = False
            self._remark(_KEYS)
        if self._asking is None and not self._answered.issuperset(open_ids):
            self._ask(report)

    def _show_event(self, event: Mapping[str, Any]) -> None:
        match event["type"]:
            case "writing":
                self._print(self._printed.writing(event["text"]))
            case "output" if event["kind"] == "text":
                self._print(self._printed.line(event["line"]))
                self._last_line = event["line"]
            case "output":
                self._print(self._printed.other_line(event["line"]))
                self._last_line = event["line"]
            case "turn_started":
                self._print(self._printed.new_answer())
                if event.get("continues"):
                    self._seen_messages.add(event["messageId"])
                    self._remark("[the session continues]")
                else:
                    self._show_message(event["messageId"], event["prompt"])
            case "message_joined":
                self._show_message(event["messageId"], event["text"])
            case "gap":
                self._remark("[some output is no longer available]")

    def _show_message(self, message_id: str, text: str) -> None:
        """Show a message of another client, unless it was shown before: it may run again, such as after a usage
        limit."""
        if not text or message_id in self._seen_messages:
            return
        self._seen_messages.add(message_id)
        if (sent := _comparable(text)) in self._sent:
            self._sent.remove(sent)
        elif not self._json:
            self._at_prompt = False  # it stands behind the prompt, as if it were typed here
            self._remark(f"[another client] {visible(cut(text, _MAX_MESSAGE))}")

    def _print(self, text: str) -> None:
        """Print output, unless the output is for a program."""
        if text and not self._json:
            self._leave_prompt()
            sys.stdout.write(text)

    def _remark(self, text: str, end: str = "\n") -> None:
        """Print a remark on stderr, on a new line."""
        self._leave_prompt()
        # Needed only if stdout and stderr are on the same screen.
        if self._printed.is_open and sys.stdout.isatty() and sys.stderr.isatty():
            sys.stdout.write(self._printed.break_line())
        if not self._json:
            sys.stdout.flush()
        print(text, end=end, file=sys.stderr, flush=True)

    def _leave_prompt(self) -> None:
        if self._at_prompt:
            self._at_prompt = False
            print(file=sys.stderr, flush=True)

    def _ask(self, report: Report) -> None:
        """Ask the first unanswered question; without a person at the terminal, print the command that would answer
        it."""
        for asked in OpenQuestions(self._sessions).within(report):
            if asked.id in self._answered:
                continue
            if self._typing:
                with self._input_lock:
                    _discard_typed()
                    # Under the lock, together with the discarding: no line
                    # can be read in between and count for this question.
                    self._questions_shown += 1
                self._asking = Asking(asked)
                self._remark("", end="")
                print_question(asked, sys.stderr, with_choices=False)
                self._prompt()
                return
            if asked.id not in self._mentioned:
                self._mentioned.add(asked.id)
                self._remark("", end="")
                print_question(asked, sys.stderr)
                self._leave_to_others(asked)

    def _leave_to_others(self, asked: OpenQuestion) -> None:
        """Leave a question that cannot be asked here to other clients, or deny it at once."""
        others = who_can_answer(self._arguments)
        if others:
            print(f"waiting for {others}: claude-code-mcp answer {asked.id}", file=sys.stderr, flush=True)
            return
        self._denied = True
        self._answered.add(asked.id)
        with contextlib.suppress(CallFailed):  # it was answered in the meantime
            OpenQuestions(self._sessions).answer(asked, {"decision": "deny", "reason": _UNANSWERABLE})
        print(f"denied: {_UNANSWERABLE} {flags_that_allow(asked)}", file=sys.stderr, flush=True)

    def _prompt(self) -> None:
        if self._asking is not None:
            print(self._asking.prompt, end="", file=sys.stderr, flush=True)

    def _answer(self, typed: _Typed) -> None:
        """Use a line as the answer if it was typed while the question is shown; ignore any other line."""
        if self._asking is None or typed.questions != self._questions_shown:
            return
        try:
            decision = self._asking.take(typed.line)
        except NoAnswer as error:
            print(error, file=sys.stderr)
            decision = None
        if decision is None:
            self._prompt()
            return
        asked = self._asking.asked
        try:
            OpenQuestions(self._sessions).answer(asked, decision)
        except CallFailed as error:  # it is invalid or too late: in the latter case the next report shows it
            print(f"[{visible(str(error))}]", file=sys.stderr)
            self._asking = Asking(asked)
            self._prompt()
        else:
            self._answered.add(asked.id)
            self._asking = None

    def _input_ended(self) -> None:
        """Handle the end of the input: no further questions can be asked here."""
        self._typing = False
        if self._asking is not None:
            asked, self._asking = self._asking.asked, None
            self._mentioned.add(asked.id)
            print(file=sys.stderr)
            self._leave_to_others(asked)

    def _continues(self, report: Report) -> bool:
        """Whether the session waits for a usage limit and continues automatically; print when, unless that is now."""
        at = (report.get("limit") or {}).get("continuesAt")
        if at and at != self._continues_at and datetime.fromisoformat(at).timestamp() > time.time() + 1:
            leave = "Ctrl-D" if self._is_attached else "Ctrl-C"
            at_time = local_time(at, time.time())
            self._remark(f"[{limit_line(report)} The session continues at {at_time}, even if you leave ({leave}).]")
        self._continues_at = at
        return bool(at)

    def _ended(self, report: Report) -> int:
        """Print the turn's outcome, its cost and how to continue; return the exit code."""
        if self._json:
            shown = {name: value for name, value in report.items() if name not in ("events", "hasMore")}
            print_json({**shown, "result": self._sessions.result(report) or None})
            return self._exit_code(report)
        # After SIGHUP the terminal may be gone.
        with contextlib.suppress(OSError):
            self._print(self._printed.break_line())
            remark = f"session cost ${report.get('costUsd') or 0:.4f}"
            if report["status"] != "cancelled":
                where = [("--url", self._arguments.url), ("--config", self._arguments.config)]
                options = "".join(f" {name} {shlex.quote(value)}" for name, value in where if value)
                remark += f"; continue: claude-code-mcp send{options} {self._session_id[:8]} '…'"
            self._remark(f"[{remark}]")
        return self._exit_code(report)

    def _exit_code(self, report: Report) -> int:
        """The exit code of a turn that has ended; print the failure, if any."""
        if self._stopped_by or report["status"] == "interrupted":
            return _SIGNALED + (self._stopped_by or signal.SIGINT)
        if report["status"] == "limit_reached":
            how = "`run --on-limit wait` makes a session continue automatically then."
            return failed(f"{limit_line(report)} {how}", ExitCode.LIMITED)
        problem = error_text(report) or (report["status"] if report["status"] != "completed" else None)
        if problem and sys.stdout.isatty() and sys.stderr.isatty():
            problem = without_repetition(problem, self._last_line)
        if problem:
            return failed(visible(problem), exit_code_of((report.get("error") or {}).get("code") or ""))
        return int(ExitCode.REFUSED if self._denied else ExitCode.DONE)


def _comparable(text: str) -> str:
    """The part of a message that is compared."""
    return text.strip()[:_COMPARED]


def limit_line(report: Report) -> str:
    """Which usage limit ended the turn of a report, and when it resets."""
    limit = report.get("limit") or {}
    name = limit_name(limit.get("type"))
    when = f"; it resets at {local_time(limit['resetsAt'], time.time())}" if limit.get("resetsAt") else ""
    return f"The {name} limit is reached{when}."


def without_repetition(problem: str, last_line: str) -> str:
    """Why a turn failed, without text that is already on the terminal: Claude Code also prints some failures as its
    answer."""
    known = last_line.strip()
    return problem.replace(f": {known}", "", 1) if known and f": {known}" in problem else problem


_UNANSWERABLE = "no client can answer it."


def who_can_answer(arguments: argparse.Namespace) -> str:
    """Who else can answer questions of a session, for display; empty if no one can, or if the command must not wait."""
    if arguments.on_question is not None:
        return "an answer" if arguments.on_question == "wait" else ""
    if arguments.own or arguments.url:
        return ""  # our own server has no other clients, and those of a remote server are unknown
    status: dict[str, Any] = ask_shared(os.environ, "status", target_of(arguments).arguments) or {}
    persons = sum(bool(client.get("person")) for client in status.get("clients") or ())
    if persons:
        return "a person at another terminal"
    # Not by sign-in: a sign-in lasts for weeks, and the page may not be open.
    watched: dict[str, Any] = ask_shared(os.environ, "watched", target_of(arguments).arguments) or {}
    return "the console" if watched.get("watched") else ""


def flags_that_allow(asked: OpenQuestion) -> str:
    """The flags that would have avoided a question."""
    question = asked.question
    if question.kind is not QuestionKind.PERMISSION:
        return "Use --on-question wait to wait for `claude-code-mcp answer`."
    rules = [rule for rule in question.session_rules if _is_rule(rule)] or [question.tool_name]
    flags = " ".join(f"--allow {shlex.quote(rule)}" for rule in rules)
    edits = f" or --permission-mode {ACCEPT_EDITS}" if question.tool_name in EDITED else ""
    return f"{flags}{edits} would allow it; use --on-question wait to wait for `claude-code-mcp answer`."


def _is_rule(text: str) -> bool:
    """Whether a grant for the session is a rule; otherwise it describes a directory or a mode."""
    with contextlib.suppress(argparse.ArgumentTypeError):
        return tool_rule(text) == text
    return False


def _discard_typed() -> None:
    """Discard text typed before a question was shown: it is not an answer to it."""
    with contextlib.suppress(ImportError, OSError):
        import termios  # noqa: PLC0415 - not on Windows

        with contextlib.suppress(termios.error):
            termios.tcflush(0, termios.TCIFLUSH)
