"""The questions of one session: requests of its process on one side, the broker and its channels on the other; and the
file that a question is about.

A question is in the log before anything can answer it, and its end is in the log before the process gets the reply.
Answers of the policy's rules take the same path as those of people.

The file that a tool is about to change is read before a person is asked, so that the change can be shown in its place
in the file. Only a file below the session's own directories is read, where its principal may read it (the policy's
roots and rules), by a path without links and as a plain file: a session may have put anything there. That blocks on the
disk.
"""

import asyncio
import json
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ..claude.protocol import ControlRequest, Raw
from ..errors import ClaudeCodeError, InvalidArgument, PermissionDenied
from ..model.events import QuestionOpened, QuestionSettled
from ..model.question import Answer, Closure, FileChange, Question, QuestionKind, Resolution, kind_of
from ..model.text import unified_diff
from ..model.tool_names import PREFIX
from ..private_files import is_absence, open_at
from ..questions.broker import Broker, chosen_mode, labels_by_text
from ..questions.form_model import TOOL, GivenAnswer, check_answers, filled_in, heading_of, questions_of
from ..questions.presentation import describe
from ..store.event_log import EventLog
from .event_writer import ReadableLines
from .policy_enforcer import BY, PolicyEnforcer

LARGEST = 512 << 10
"""Bytes of a file, or characters of a text, above which nothing is compared."""
_MOST_SEARCHED = 64 << 20
"""Characters that are looked through for all edits of one call: each of thousands would be looked for in the whole."""
LONGEST_DIFF = 200_000
"""Characters of a change that is shown in its file."""
_NOT_TEXT = FileChange(note="The file exists, and is not text: the change cannot be shown in it.")
EDITING_TOOLS = frozenset({"Edit", "MultiEdit", "Write", "NotebookEdit"})


def changed_file(tool_name: str, tool_input: object) -> str | None:
    """The path that a call would write to, where that can be compared; None for every other call."""
    if tool_name not in EDITING_TOOLS or not isinstance(tool_input, Mapping):
        return None
    path = tool_input.get("notebook_path" if tool_name == "NotebookEdit" else "file_path")
    return path if isinstance(path, str) and os.path.isabs(path) and "\0" not in path else None


def file_change(
    tool_name: str,
    tool_input: Mapping[str, Any],
    path: str,
    directories: Sequence[str],
    readable: Callable[[str], str],
) -> FileChange | None:
    """What the call would do to the file as it is now; None where there is no file yet, or none that may be read here.

    `readable` returns where a path leads and raises ClaudeCodeError if it may not be read; `directories` are those that
    the session works in.
    """
    try:
        before = _read(path, directories, readable)
    except (OSError, ClaudeCodeError) as error:
        unread = isinstance(error, OSError) and not is_absence(error)
        return FileChange(note="The file cannot be read here to be compared.") if unread else None
    except UnicodeDecodeError:
        return _NOT_TEXT
    return _change(tool_name, tool_input, before) if isinstance(before, str) else before


def _read(path: str, directories: Sequence[str], readable: Callable[[str], str]) -> str | FileChange | None:
    """The text of the file; why it cannot be compared; or None if it is no file of the session's directories."""
    real = readable(path)
    roots = [os.path.realpath(directory) for directory in directories]
    if not any(real.startswith(os.path.join(root, "")) for root in roots):
        return None
    with open(real, "rb", opener=open_at) as file:
        # Of what was opened: the path may lead to another file by now.
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            return None
        if found.st_size > LARGEST:
            return FileChange(note=f"The file exists, with {found.st_size:,} bytes; that is too long to be compared.")
        content = file.read(LARGEST + 1)[:LARGEST]
    return _NOT_TEXT if b"\0" in content else content.decode()


def file_text(path: str, directory: str, readable: Callable[[str], str]) -> tuple[str, str]:
    """The path of a file from a directory of the session's on, and its text; `path` may be relative to there.
    InvalidArgument for everything else: what is not there, is elsewhere or may not be read is not told apart."""
    whole = os.path.normpath(os.path.join(directory, path))
    try:
        content = _read(whole, (directory,), readable) if "\0" not in path else None
    except (OSError, ClaudeCodeError):
        content = None
    except UnicodeDecodeError:
        content = _NOT_TEXT
    if content is None:
        raise InvalidArgument(
            "There is no such file in the session's directory, or none that may be read.", field="path"
        )
    if not isinstance(content, str):
        reason = "it is not text" if content is _NOT_TEXT else f"it has more than {LARGEST:,} bytes"
        raise InvalidArgument(f"The file cannot be shown: {reason}.", field="path")
    return os.path.relpath(whole, directory), content


def _change(tool_name: str, tool_input: Mapping[str, Any], before: str) -> FileChange | None:
    if tool_name == "NotebookEdit":
        return _cell_change(tool_input, before)
    after = _after(tool_name, tool_input, before)
    if after is None:
        # Edits are written with plain line breaks, whatever the file has.
        before = before.replace("\r\n", "\n")
        after = _after(tool_name, tool_input, before)
    if after is None or len(after) > LARGEST:
        return None
    diff = unified_diff(before, after)
    if len(diff) > LONGEST_DIFF:
        return FileChange(
            note=f"The file exists, with {before.count(chr(10)) + 1:,} lines; the change is too long to be compared."
        )
    return FileChange(diff=diff) if diff else FileChange(note="The file has this content already.")


def _cell_change(tool_input: Mapping[str, Any], notebook: str) -> FileChange | None:
    """The change to the source of one cell, by lines of that cell; None if the call does not fit the notebook."""
    mode, new, wanted = (
        tool_input.get("edit_mode") or "replace",
        tool_input.get("new_source"),
        tool_input.get("cell_id"),
    )
    if not isinstance(new, str) and mode != "delete":
        return None
    try:
        cells = json.loads(notebook)["cells"]
        number = _cell_number(cells, wanted)
        if mode == "insert":
            return FileChange(
                unified_diff("", str(new)), f"A new cell behind cell {wanted}." if wanted else "A new first cell."
            )
        if number is None:
            return None
        source = cells[number]["source"]
        before = source if isinstance(source, str) else "".join(source)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    diff = unified_diff(before, "" if mode == "delete" else str(new))
    note = f"Cell {number + 1} of {len(cells)}{' is deleted' if mode == 'delete' else ''}; lines are those of the cell."
    return FileChange(diff, note) if diff and len(diff) <= LONGEST_DIFF else FileChange(note=note)


def _cell_number(cells: Any, wanted: object) -> int | None:
    """The place of a cell by its id, or by `cell-3` as Claude Code names those that have none."""
    for number, cell in enumerate(cells):
        if wanted is not None and cell.get("id") == wanted:
            return number
    place = re.fullmatch(r"cell-(\d{1,6})", wanted) if isinstance(wanted, str) else None
    return int(place[1]) if place is not None and int(place[1]) < len(cells) else None


def _after(tool_name: str, tool_input: Mapping[str, Any], before: str) -> str | None:
    """The text after the call; None if the call does not fit the text, which Claude Code will find as well."""
    if tool_name == "Write":
        content = tool_input.get("content")
        return content if isinstance(content, str) else None
    edits = tool_input.get("edits") if tool_name == "MultiEdit" else [tool_input]
    text, searched = before, 0
    for edit in edits if isinstance(edits, list) else [None]:
        searched += len(text)
        edited = _edited(text, edit) if searched <= _MOST_SEARCHED else None
        if edited is None or len(edited) > LARGEST:
            return None
        text = edited
    return text


def _edited(text: str, edit: object) -> str | None:
    if not isinstance(edit, Mapping):
        return None
    old, new = edit.get("old_string"), edit.get("new_string")
    if not isinstance(old, str) or not isinstance(new, str) or not old:
        return None
    found = text.count(old)
    if edit.get("replace_all"):
        # Before it is made: a short text that occurs often may be replaced by a long one.
        too_long = len(text) + found * (len(new) - len(old)) > LARGEST
        return None if not found or too_long else text.replace(old, new)
    return text.replace(old, new, 1) if found == 1 else None


# -- questions ---------------------------------------------------------------------------------------------------------


class QuestionSource(Protocol):
    """The session whose questions these are."""

    id: str
    cwd: str
    owner: str
    log: EventLog
    readable_lines: ReadableLines

    def grant(self, updates: list[Mapping[str, Any]]) -> None:
        """Permission updates that were allowed for the whole session."""

    def plan_approved(self, mode: str | None) -> None:
        """A plan was approved; the session goes on in this mode, or in the CLI's own choice."""


class SessionQuestions:
    """Opens questions for requests and hands the replies back."""

    def __init__(
        self,
        session: QuestionSource,
        broker: Broker,
        enforcer: PolicyEnforcer,
        reply: Callable[[str, Raw | None], None],
        use_answered: Callable[[str | None, str, Mapping[str, Any] | None], None],
    ) -> None:
        """`reply` takes the id of the request and the response for the CLI, None if there is no answer; `use_answered`
        before that the tool use, the tool and the input that it may run with, None if it may not."""
        self._session = session
        self._broker = broker
        self._enforcer = enforcer
        self._reply = reply
        self._use_answered = use_answered
        self.on_settled: Callable[[], None] = lambda: None
        """Called after a question was settled and the CLI has its reply."""
        self._question_ids: dict[str, str] = {}
        """By the id of the CLI's request."""

    @property
    def pending(self) -> list[Question]:
        """The open questions of the session, oldest first."""
        return self._broker.pending(self._session.id)

    def open(self, frame: ControlRequest, change: FileChange | None = None) -> None:
        """Offers a `can_use_tool` request to every channel, unless a rule answers it. `change` is what the call would
        do to a file."""
        request, session = frame.request, self._session
        tool_use_id = request.get("tool_use_id")
        tool = str(request.get("tool_name"))
        offered = request.get("permission_suggestions")
        admission = self._enforcer.admission(session.owner)
        is_plan = kind_of(tool) is QuestionKind.PLAN_REVIEW
        tool_input = self._tool_input(request, tool_use_id)
        modes, mode_after = admission.modes_after_plan() if is_plan else ((), None)
        question = self._broker.open(
            session.id,
            tool,
            tool_input,
            lambda question, resolution, body: self._settled(frame.id, question, resolution, body),
            cwd=session.cwd,
            tool_use_id=tool_use_id,
            suggestions=admission.offers(offered, tool, tool_input, session.cwd),
            reason=request.get("decision_reason"),
            blocked_path=request.get("blocked_path"),
            change=change,
            modes=modes,
            mode_after=mode_after,
        )
        self._question_ids[frame.id] = question.id
        session.log.append(QuestionOpened(question))
        answer = self._enforcer.answer(session.owner, session.cwd, question.tool_name, question.tool_input)
        if answer is not None:
            self._broker.answer(session.id, question.id, answer, BY)

    def elicit(self, server: str, form: Raw) -> "asyncio.Future[Raw]":
        """Puts a form of an MCP server to every channel; the future has the form as it was filled in. An answer that
        the form does not take is refused, and the question stays open."""
        filled: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        session = self._session

        def check(question: Question, answer: Answer, body: Raw) -> None:
            check_answers(server, form, _answers_in(question, answer, body))

        def settle(question: Question, resolution: Resolution, body: Raw | None) -> None:
            session.log.append(QuestionSettled(question, resolution))
            # Who asked may be gone: a task that is cancelled cancels the future that it waits for.
            if not filled.done():
                filled.set_result(_form_result(server, form, question, resolution, body))
            self.on_settled()

        heading = heading_of(server, form)
        question = self._broker.open(
            session.id, TOOL, questions_of(server, form), settle, cwd=session.cwd, form=heading, check=check
        )
        session.log.append(QuestionOpened(question))
        return filled

    def ask_about_call(self, tool: str, arguments: Mapping[str, Any]) -> "asyncio.Future[None]":
        """Asks whether a call to a server of the hub may run that Claude Code has not asked about; the future ends with
        PermissionDenied if it may not. A rule of the policy may answer at once. The input cannot be changed: the call
        is on its way."""
        allowed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        session = self._session

        def check(question: Question, answer: Answer, body: Raw) -> None:
            if answer.updated_input is not None and answer.updated_input != question.tool_input:
                raise InvalidArgument("updated_input: this call cannot be changed any more.", field="updated_input")

        def settle(question: Question, resolution: Resolution, body: Raw | None) -> None:
            session.log.append(QuestionSettled(question, resolution))
            # Who asked may be gone: a task that is cancelled cancels the future that it waits for.
            if not allowed.done():
                _finish(allowed, resolution)
            self.on_settled()

        question = self._broker.open(session.id, tool, arguments, settle, cwd=session.cwd, check=check)
        session.log.append(QuestionOpened(question))
        answer = self._enforcer.answer(session.owner, session.cwd, tool, arguments)
        if answer is not None:
            self._broker.answer(session.id, question.id, answer, BY)
        return allowed

    def withdraw(self, request_id: str) -> None:
        """The CLI no longer wants an answer to this request."""
        self._broker.withdraw(self._question_ids.pop(request_id, ""), "Claude Code no longer needs an answer")

    def withdraw_all(self, detail: str) -> None:
        """Closes all open questions without an answer."""
        self._broker.withdraw_all(self._session.id, detail)

    def _tool_input(self, request: Raw, tool_use_id: str | None) -> Raw:
        """The input of the call. A plan that the CLI has left out of the request is taken from the model's own call."""
        tool_input = request.get("input")
        tool_input = tool_input if isinstance(tool_input, dict) else {}
        if request.get("tool_name") == "ExitPlanMode" and not tool_input.get("plan"):
            plan = self._session.readable_lines.plan_input(tool_use_id).get("plan")
            return {**tool_input, "plan": plan} if plan else tool_input
        return tool_input

    def _settled(self, request_id: str, question: Question, resolution: Resolution, body: Raw | None) -> None:
        session, answer = self._session, resolution.answer
        self._question_ids.pop(request_id, None)
        if body is not None and isinstance(updates := body.get("updatedPermissions"), list):
            session.grant(updates)
        session.log.append(QuestionSettled(question, resolution))
        if answer is not None and answer.allow and question.kind is QuestionKind.PLAN_REVIEW:
            session.plan_approved(chosen_mode(question, answer))
        if answer is not None and answer.updated_input is not None and answer.updated_input != question.tool_input:
            changed = describe(question.tool_name, answer.updated_input, session.cwd)
            session.readable_lines.input_changed(question.tool_use_id, changed)
        denied = body is not None and body.get("behavior") == "deny"
        if denied:  # a permission, a plan or an answer: the CLI calls each an error, and none of them has failed
            session.readable_lines.mark_denied(question.tool_use_id)
        if body is not None and question.tool_name.startswith(PREFIX):
            updated = body.get("updatedInput")
            granted = None if denied else updated if isinstance(updated, Mapping) else question.tool_input
            # Before the reply: the call that it allows may be the very next frame.
            self._use_answered(question.tool_use_id, question.tool_name, granted)
        self._reply(request_id, body)
        self.on_settled()


def _finish(allowed: "asyncio.Future[None]", resolution: Resolution) -> None:
    answer = resolution.answer
    if answer is not None and answer.allow:
        allowed.set_result(None)
    else:
        reason = answer.message if answer is not None else resolution.detail
        allowed.set_exception(PermissionDenied(reason or "The call was denied."))


def _form_result(server: str, form: Raw, question: Question, resolution: Resolution, body: Raw | None) -> Raw:
    if resolution.closure is not Closure.ANSWERED or resolution.answer is None or body is None:
        return {"action": "cancel"}
    if body.get("behavior") != "allow":
        return {"action": "decline"}
    return filled_in(server, form, _answers_in(question, resolution.answer, body))


def _answers_in(question: Question, answer: Answer, body: Raw) -> Mapping[str, GivenAnswer]:
    """The answers by the text of their question, several labels apart: joined they could be read in another way."""
    if answer.answers is not None:
        return labels_by_text(question, answer.answers)
    answers = body["updatedInput"].get("answers")
    return answers if isinstance(answers, dict) else {}
