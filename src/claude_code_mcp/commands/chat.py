"""`run`, `send` and `attach`: a conversation with a session in the terminal, its questions asked there.

One thread follows the session, one reads what is typed; both put what they have into one queue, which the main thread
works off. So a question that somebody else answers is taken back while it stands here, and output never waits for a
line to be typed.

Output goes to stdout; questions, prompts and remarks go to stderr.
"""

import argparse
import contextlib
import os
import queue
import select
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..client.deciding import NoAnswer
from ..client.live_sessions import LiveSessions, Report, is_busy
from ..errors import InvalidArgument
from ..model.text import visible
from ..shared.client import CallFailed
from .asking import Asking
from .flags import positive, print_json, standard_input
from .printing import print_question
from .verbs import add_session, add_verb, at_server, failed
from .watching import error_text

_INTERRUPTED = 130
_CHUNK = 1 << 16
_MODES = ("default", "acceptEdits", "plan", "dontAsk", "auto", "bypassPermissions")


def add_to(commands: Any) -> None:
    run = add_verb(commands, "run", "run a prompt in a new session, to its end", at_server(_run))
    run.add_argument("prompt", nargs="+", metavar="PROMPT", help="the task; - reads it from standard input")
    run.add_argument("--cwd", metavar="DIR", default=".", help="where it works (default: here)")
    run.add_argument("--model", metavar="NAME", help="a model, or an alias such as opus")
    run.add_argument("--permission-mode", choices=_MODES, metavar="MODE", help=", ".join(_MODES))
    run.add_argument("--allow", action="append", metavar="RULE", help="allowed without asking, such as 'Bash(make *)'")
    run.add_argument("--deny", action="append", metavar="RULE", help="denied without asking")
    run.add_argument("--max-turns", type=positive, metavar="N", help="end after so many answers of the model")
    _add_common(run)
    send = add_verb(commands, "send", "send a message to a session and wait for what comes of it", at_server(_send))
    add_session(send)
    send.add_argument("message", nargs="+", metavar="MESSAGE", help="the message; - reads it from standard input")
    send.add_argument("--no-wait", action="store_true", help="return as soon as it is accepted")
    _add_common(send)
    attach = add_verb(commands, "attach", "follow a session and type messages to it", at_server(_attach))
    add_session(attach)
    attach.add_argument("--lines", type=positive, default=20, metavar="N", help="begin with the last N (default 20)")
    _add_common(attach)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--own", action="store_true", help="on a server that is started for this and ends with it, not the shared one"
    )


def _text(parts: list[str]) -> str:
    text = standard_input() if parts == ["-"] else " ".join(parts)
    if not text.strip():
        raise InvalidArgument("There is nothing to send.")
    return text


# -- the verbs ----------------------------------------------------------------------------------------------------


def _run(sessions: LiveSessions, arguments: argparse.Namespace) -> int:
    options = {
        "workingDirectory": os.path.abspath(arguments.cwd),
        "model": arguments.model,
        "permissionMode": arguments.permission_mode,
        "allowedTools": arguments.allow,
        "disallowedTools": arguments.deny,
        "maxTurns": arguments.max_turns,
    }
    prompt = _text(arguments.prompt)
    made = sessions.create(prompt, **{name: value for name, value in options.items() if value is not None})
    conversation = _Conversation(sessions, made["sessionId"], arguments, cursor="0")
    print(f"session {made['sessionId']}", file=sys.stderr, flush=True)
    return conversation.until_rest()


def _send(sessions: LiveSessions, arguments: argparse.Namespace) -> int:
    text, session_id = _text(arguments.message), sessions.find(arguments.session)
    cursor = sessions.status(session_id, outputLines=0)["nextCursor"]
    accepted = sessions.send(session_id, text)
    if arguments.no_wait:
        print_json(accepted) if arguments.json else print(f"{accepted['sessionId']}: {accepted['status']}")
        return 0
    return _Conversation(sessions, accepted["sessionId"], arguments, cursor=cursor).until_rest()


def _attach(sessions: LiveSessions, arguments: argparse.Namespace) -> int:
    if arguments.json:
        raise InvalidArgument("attach is for a person; `logs --follow --json` is for programs.")
    session_id = sessions.find(arguments.session)
    return _Conversation(sessions, session_id, arguments, lines=arguments.lines).attached()


# -- the conversation ---------------------------------------------------------------------------------------------


class _Typed(NamedTuple):
    """A line, and how many questions had been shown when it was typed: it can answer only the last of those."""

    line: str
    questions: int


class _CtrlC:
    """Ctrl-C was pressed."""


_Happening = Report | _Typed | _CtrlC | Exception | None
"""A report, a typed line, Ctrl-C, a failure of the thread that follows, or the end of what is typed."""


class _Conversation:
    """One session on one terminal."""

    def __init__(
        self,
        sessions: LiveSessions,
        session_id: str,
        arguments: argparse.Namespace,
        cursor: str | None = None,
        lines: int = 0,
    ) -> None:
        self._sessions = sessions
        self._session_id = session_id
        self._json = arguments.json
        self._happened: queue.SimpleQueue[_Happening] = queue.SimpleQueue()
        self._asking: Asking | None = None
        self._answered: set[str] = set()
        """Questions that were answered here; a report that is on its way may still have them."""
        self._questions_shown = 0
        self._input_lock = threading.Lock()
        """Held while input is read or thrown away, so that no line from before a question counts as an answer."""
        self._mentioned: set[str] = set()
        """Questions that nobody can be asked here, and that a line was printed for."""
        self._report: Report = {"status": "running"}
        self._typing = sys.stdin is not None and sys.stdin.isatty()
        self._interrupting = False
        self._chunk_questions = 0
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored
            signal.signal(signal.SIGINT, self._on_ctrl_c)
        threading.Thread(target=self._follow, args=(cursor, lines), daemon=True).start()

    def until_rest(self) -> int:
        """Prints what happens and asks what is asked until no turn runs; the value is the exit code."""
        if self._typing:
            threading.Thread(target=self._read_lines, daemon=True).start()
        for happening in self._happenings():
            if isinstance(happening, dict):
                self._show(happening)
                if not is_busy(happening) and not happening.get("hasMore"):
                    return self._ended(happening)
            elif happening is None:
                self._input_ended()
            else:
                self._answer(happening)
        return _INTERRUPTED

    def attached(self) -> int:
        """Prints what happens, and sends what is typed, until the input ends."""
        threading.Thread(target=self._read_lines, daemon=True).start()
        self._typing = True
        for happening in self._happenings():
            if happening is None:
                return 0
            if isinstance(happening, dict):
                self._show(happening)
            elif self._asking is not None and happening.questions == self._questions_shown:
                self._answer(happening)
            elif happening.line.strip():
                self._say(happening.line)
        return _INTERRUPTED

    def _happenings(self) -> Iterator[Report | _Typed | None]:
        """What comes, until Ctrl-C is pressed while no turn runs, or twice. The first one interrupts the turn."""
        while True:
            happening = self._happened.get()
            if isinstance(happening, Exception):
                raise happening
            if not isinstance(happening, _CtrlC):
                yield happening
            elif is_busy(self._report):
                print("\ninterrupting; Ctrl-C again leaves at once", file=sys.stderr, flush=True)
                self._sessions.interrupt(self._session_id)
            else:
                return

    def _on_ctrl_c(self, *_: object) -> None:
        """It may come in the middle of anything, so the first one waits for its turn; the second one leaves."""
        if self._interrupting:
            raise KeyboardInterrupt
        self._interrupting = True
        self._happened.put(_CtrlC())

    # -- the threads ------------------------------------------------------------------------------------------

    def _follow(self, cursor: str | None, lines: int) -> None:
        try:
            for report in self._sessions.follow(self._session_id, cursor, lines):
                self._happened.put(report)
        except Exception as error:  # the main thread raises it
            self._happened.put(error)

    def _read_lines(self) -> None:
        """Reads the descriptor itself: a thread that waits inside of sys.stdin would be in the way at the end."""
        left = b""
        with contextlib.suppress(OSError):
            while chunk := self._read_chunk():
                *lines, left = (left + chunk).split(b"\n")
                for line in lines:
                    self._happened.put(_Typed(line.decode("utf-8", "replace"), self._chunk_questions))
        self._happened.put(None)

    def _read_chunk(self) -> bytes:
        """What was typed next; empty at its end."""
        while os.name == "posix":
            select.select([0], [], [])
            with self._input_lock:
                if select.select([0], [], [], 0)[0]:  # it may have been thrown away meanwhile
                    self._chunk_questions = self._questions_shown
                    return os.read(0, _CHUNK)
        chunk = os.read(0, _CHUNK)
        self._chunk_questions = self._questions_shown
        return chunk

    # -- what comes -------------------------------------------------------------------------------------------

    def _show(self, report: Report) -> None:
        self._report = report
        self._session_id = report["sessionId"]
        if not self._json:
            for line in self._sessions.lines(report):
                print(visible(line))
            sys.stdout.flush()
        if report.get("notice"):
            print(f"[{visible(report['notice'])}]", file=sys.stderr)
        self._interrupting = self._interrupting and is_busy(report)
        open_ids = [entry["inputId"] for entry in report.get("pendingInputs") or ()]
        if self._asking is not None and self._asking.asked.id not in open_ids:
            print("\n[the question is no longer open]", file=sys.stderr, flush=True)
            self._asking = None
        if self._asking is None and not self._answered.issuperset(open_ids):
            self._ask(report)

    def _ask(self, report: Report) -> None:
        """Asks the first question that has no answer yet or, where nobody can be asked, says what would answer it."""
        for asked in self._sessions.questions_in(report):
            if asked.id in self._answered:
                continue
            if self._typing:
                with self._input_lock:
                    _discard_typed()
                    self._questions_shown += 1
                self._asking = Asking(asked)
                print_question(asked, sys.stderr)
                self._prompt()
                return
            if asked.id not in self._mentioned:
                self._mentioned.add(asked.id)
                print_question(asked, sys.stderr)
                print(f"waiting: claude-code-mcp answer {asked.id}", file=sys.stderr, flush=True)

    def _prompt(self) -> None:
        if self._asking is not None:
            print(self._asking.prompt, end="", file=sys.stderr, flush=True)

    def _answer(self, typed: _Typed) -> None:
        """Takes a line that was typed while the question stands here; any other one goes nowhere."""
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
            self._sessions.answer(asked, decision)
        except CallFailed as error:  # it does not fit, or is too late: then the next report says so
            print(f"[{visible(str(error))}]", file=sys.stderr)
            self._asking = Asking(asked)
            self._prompt()
        else:
            self._answered.add(asked.id)
            self._asking = None

    def _input_ended(self) -> None:
        """Nobody can be asked any more."""
        self._typing = False
        if self._asking is not None:
            print(f"\nwaiting: claude-code-mcp answer {self._asking.asked.id}", file=sys.stderr, flush=True)
            self._mentioned.add(self._asking.asked.id)
            self._asking = None

    def _say(self, message: str) -> None:
        try:
            self._sessions.send(self._session_id, message)
        except CallFailed as error:
            print(f"[{visible(str(error))}]", file=sys.stderr, flush=True)

    def _ended(self, report: Report) -> int:
        if self._json:
            print_json({**report, "result": self._sessions.result(report) or None})
        if report["status"] == "interrupted":
            return _INTERRUPTED
        problem = error_text(report) or (report["status"] if report["status"] != "completed" else None)
        return failed(visible(problem)) if problem else 0


def _discard_typed() -> None:
    """What was typed before a question was shown is no answer to it."""
    with contextlib.suppress(ImportError, OSError):
        import termios  # noqa: PLC0415 - not on Windows

        with contextlib.suppress(termios.error):
            termios.tcflush(0, termios.TCIFLUSH)
