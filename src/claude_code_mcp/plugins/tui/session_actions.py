"""Actions on sessions: create, send, interrupt, switch model and mode, rename, fork, export, merge, delete. Every
action is a tool call in a worker: refusals are shown, and the screen never waits for it."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from textual.app import App

from ...client.connections import CallFailed, NotRunning
from ...client.live_sessions import LiveSessions, OpenQuestion, OpenQuestions, losses
from ...client.styled_lines import LineComments, comments_message
from ...core.model.options import BYPASS, PERMISSION_MODES
from ...core.model.text import visible
from .changes_screen import ChangesScreen
from .dialog_screens import AskLine, NewSession, NewSessionRequest, Pick
from .server_link import ServerLink
from .server_updates import Pump

_CHECKPOINT = re.compile(r"^(\S{8,}) {2}(.+)$", re.MULTILINE)
"""A message that files can be restored to, in the result of the action `changes`."""
_MAX_JOINED = 20
_BEGINNING = 40
"""How many characters identify a message of which the server reports only the beginning."""
_ASKED = {
    "rename": "New title (empty: none)",
    "tag": "New tag (empty: none)",
    "model": "Model, or an alias such as opus (empty: Claude Code's choice)",
    "merge": "Commit message for uncommitted changes (empty: merge commits only)",
}
"""The actions that need a text, with their prompts."""
_PLAIN = ("fork", "pin", "unpin", "archive", "unarchive")


@dataclass(frozen=True, slots=True)
class SessionOnScreen:
    """The screen's knowledge of sessions and its actions on them."""

    target: Callable[[], str | None]
    """The session for actions: the highlighted one while the list has the focus, otherwise the shown one."""
    open: Callable[[str | None], None]
    restore_text: Callable[[str], None]
    """Restores a message that could not be sent to the input."""


class SessionActions:
    """The actions; each returns at once and continues in a worker of the application."""

    def __init__(
        self, app: App[None], link: ServerLink, pump: Pump, directory: str, on_screen: SessionOnScreen
    ) -> None:
        self._app = app
        self._link = link
        self._pump = pump
        self._directory = directory
        self._on_screen = on_screen
        self._joined: list[str] = []
        """Messages sent during a turn, which Claude may not have read."""
        self._work = WorkActions(self, app, pump, on_screen)

    def commands(self) -> Mapping[str, Callable[[str], object]]:
        """The actions by palette name; each takes the text typed after its name."""
        return {
            **{action: partial(self._manage_by_name, action) for action in (*_ASKED, *_PLAIN)},
            **self._work.commands(),
            "new": lambda _: self._run(self._new()),
            "interrupt": lambda _: self._run(self._interrupt()),
            "wait": lambda _: self.for_target(self._switch_wait),
            "continue": lambda _: self._manage("continue"),
            "mode": lambda mode: self._manage("mode", text=mode) if mode else self._run(self._pick_mode()),
            "export": lambda kind: self._manage("export", format=kind) if kind else self._run(self._pick_export()),
            "share": lambda name: self.for_target(partial(self._share, name)),
            "unshare": lambda name: self.for_target(partial(self._unshare, name)),
            "cancel": lambda _: self.for_target(self._cancel),
            "delete": lambda _: self.for_target(self._delete),
        }

    def _run(self, work: Any) -> None:
        self._app.run_worker(work)

    async def ask(self, work: Callable[[LiveSessions], Any]) -> Any:
        """The server's answer; None, after a notification, if it refuses or is gone."""
        try:
            return await self._link.do(work)
        except (CallFailed, NotRunning) as error:
            self._app.notify(visible(str(error)), severity="error", markup=False)
            return None

    def say(self, text: str) -> None:
        """Sends a message, or creates a session with it."""
        if self._pump.conversation is None:
            self._run(self._create(NewSessionRequest(text, {"workingDirectory": self._directory})))
        else:
            self._run(self._send(text))

    async def _send(self, text: str) -> None:
        conversation = self._pump.conversation
        assert conversation is not None
        # Before the await: afterward the turn that the message joined may be over or interrupted, and an interruption
        # restores completely only the messages recorded here.
        joins = conversation.busy
        if joins:
            self._joined = [*self._joined, text][-_MAX_JOINED:]
        sent = await self.ask(lambda sessions: sessions.send(conversation.session_id, text))
        for loss in losses(sent or {}):
            self._app.notify(visible(loss), severity="warning", markup=False)
        if sent is None:
            # A message that could not be sent must not be lost: the input was emptied when it was sent.
            if joins and text in self._joined:
                self._joined.remove(text)
            self._on_screen.restore_text(text)
        elif joins:
            conversation.sent(text)

    async def _create(self, request: NewSessionRequest) -> None:
        made = await self.ask(lambda sessions: sessions.create(request.prompt, **request.options))
        if made is None:
            self._on_screen.restore_text(request.prompt)
        else:
            self._pump.list_again()
            self._on_screen.open(made["sessionId"])

    async def send_answer(self, asked: OpenQuestion, decision: dict[str, Any]) -> Any:
        """None if the answer was refused."""
        return await self.ask(lambda sessions: OpenQuestions(sessions).answer(asked, decision))

    async def _interrupt(self) -> None:
        conversation = self._pump.conversation
        if conversation is None or not (conversation.busy or _continues(conversation.summary)):
            return
        report = await self.ask(lambda sessions: sessions.interrupt(conversation.session_id))
        # Claude never read these: they must not be lost with their turn. The last one first, because each is inserted
        # before the existing text. The server reports only beginnings; texts typed here are known completely.
        for beginning in reversed((report or {}).get("droppedMessages") or ()):
            typed = next((text for text in self._joined if beginning.startswith(text[:_BEGINNING])), None)
            if typed is not None:
                self._joined.remove(typed)
                self._on_screen.restore_text(typed)
            else:
                self._app.notify(visible(f"Not delivered to Claude: {beginning}"), markup=False, severity="warning")

    async def _switch_wait(self, session_id: str) -> None:
        """Makes the session wait for the reset of a usage limit, or stop waiting."""
        report = await self.ask(lambda sessions: sessions.resources.feed(session_id))
        if report is not None:
            summary = report["session"]
            waits = _continues(summary) if summary.get("limit") else summary.get("onLimit") == "wait"
            await self.managed(session_id, "on_limit", {"text": "end" if waits else "wait"})

    async def _new(self) -> None:
        has_worktrees = await self.ask(lambda sessions: sessions.takes("claude_create_session", "worktree"))
        dialog = NewSession(self._directory, await self._modes(), has_worktrees=bool(has_worktrees))
        request = await self._app.push_screen_wait(dialog)
        if request is not None:
            directory = _absolute(request.options.get("workingDirectory") or "", self._directory)
            await self._create(NewSessionRequest(request.prompt, {**request.options, "workingDirectory": directory}))

    async def _modes(self) -> list[str]:
        """The available permission modes."""
        try:
            has_bypass = await self._link.do(lambda sessions: sessions.has_bypass())
        except (CallFailed, NotRunning):
            has_bypass = False
        return [mode for mode in PERMISSION_MODES if has_bypass or mode != BYPASS]

    async def _pick_mode(self) -> None:
        modes = await self._modes()
        hint = "" if BYPASS in modes else f" ({BYPASS}: first run `claude-code-mcp bypass on`)"
        mode = await self._app.push_screen_wait(Pick(f"Permission mode{hint}", [(mode, mode) for mode in modes]))
        if mode is not None:
            self._manage("mode", text=mode)

    async def _pick_export(self) -> None:
        kinds = [("markdown", "Markdown"), ("html", "HTML page")]
        kind = await self._app.push_screen_wait(Pick("Export as", kinds))
        if kind is not None:
            self._manage("export", format=kind)

    def _manage_by_name(self, action: str, text: str) -> None:
        if text or action in _PLAIN:
            self._manage(action, **({"text": text} if text else {}))
        else:
            self.for_target(partial(self.ask_and_manage, action))

    async def ask_and_manage(self, action: str, session_id: str) -> None:
        answer = await self._app.push_screen_wait(AskLine(_ASKED[action]))
        if answer is not None:
            # An empty commit message would count as one; without any, uncommitted changes make the merge fail.
            await self.managed(session_id, action, {} if action == "merge" and not answer else {"text": answer})

    def _manage(self, action: str, **more: Any) -> None:
        self.for_target(lambda session_id: self.managed(session_id, action, more))

    def for_target(self, act: Callable[[str], Any]) -> None:
        session_id = self._on_screen.target()
        if session_id is None:
            self._app.notify("No session is selected.", severity="warning")
        else:
            self._run(act(session_id))

    async def managed(self, session_id: str, action: str, more: dict[str, Any]) -> bool:
        """Whether the server carried it out."""
        done = await self.ask(lambda sessions: sessions.manage(session_id, action, **more))
        if done is None:
            return False
        self._report(done)
        if action == "fork":
            self._on_screen.open(done["sessionId"])
        return True

    async def manage_or_ask(
        self, session_id: str, action: str, more: dict[str, Any], code: str, yes: str, then: dict[str, Any]
    ) -> None:
        """Carries it out. If the server refuses with this code, shows the reason and repeats after confirmation."""
        try:
            done = await self._link.do(lambda sessions: sessions.manage(session_id, action, **more))
        except (CallFailed, NotRunning) as refusal:
            if not isinstance(refusal, CallFailed) or refusal.code != code:
                self._app.notify(visible(str(refusal)), severity="error", markup=False)
            elif await self.confirmed(str(refusal), yes):
                await self.managed(session_id, action, then)
            return
        self._report(done)

    def _report(self, done: Mapping[str, Any]) -> None:
        self._app.notify(visible(" ".join([done.get("message") or "Done.", *losses(done)])), markup=False)
        self._pump.list_again()

    async def _share(self, name: str, session_id: str) -> None:
        name = name or await self._app.push_screen_wait(AskLine("Share the session with (a person, or group:NAME)"))
        if not name:
            return
        kinds = [("watch", "watch only"), ("answer", "watch, answer questions and send messages")]
        access = await self._app.push_screen_wait(Pick(visible(f"Share the session with {name}"), kinds))
        if access is not None:
            await self.managed(session_id, "share", {"text": name, "access": access})

    async def _unshare(self, name: str, session_id: str) -> None:
        """Stops sharing with a person; without a name, offers the people it is shared with."""
        if not name:
            report = await self.ask(lambda sessions: sessions.manage(session_id, "shares"))
            if report is None:
                return
            names = [share["with"] for share in report.get("sharedWith") or ()]
            if not names:
                self._app.notify("The session is not shared.")
                return
            chosen = await self._app.push_screen_wait(
                Pick("Stop sharing with", [(each, visible(each)) for each in names])
            )
            if chosen is None:
                return
            name = chosen
        await self.managed(session_id, "unshare", {"text": name})

    async def confirmed(self, question: str, yes: str) -> bool:
        return bool(await self._app.push_screen_wait(Pick(visible(question), [("", "No"), ("yes", yes)])))

    async def _cancel(self, session_id: str) -> None:
        if await self.confirmed(
            f"Cancel session {session_id[:8]} permanently? It accepts no more messages.", "Cancel the session"
        ):
            await self.ask(lambda sessions: sessions.cancel(session_id))
            self._pump.list_again()

    async def _delete(self, session_id: str) -> None:
        question = f"Delete session {session_id[:8]} with its whole conversation?"
        if not await self.confirmed(question, "Delete it"):
            return
        is_gone = await self.managed(session_id, "delete", {"confirm": True})
        shown = self._pump.conversation
        if is_gone and shown is not None and shown.session_id == session_id:
            self._on_screen.open(None)


class WorkActions:
    """Actions on a session's changes and on its machine."""

    def __init__(self, actions: SessionActions, app: App[None], pump: Pump, on_screen: SessionOnScreen) -> None:
        self._actions = actions
        self._app = app
        self._pump = pump
        self._on_screen = on_screen
        self._comments: dict[str, LineComments] = {}
        """Unsent comments on sessions' changes."""

    def commands(self) -> Mapping[str, Callable[[str], object]]:
        """The actions by palette name; each takes the text typed after its name."""
        for_target = self._actions.for_target
        return {
            "diff": lambda _: for_target(self._show_changes),
            "discard": lambda _: for_target(self._discard),
            "rewind": lambda _: for_target(self._rewind),
            "move": lambda machine: for_target(partial(self._move, machine)),
        }

    async def _show_changes(self, session_id: str) -> None:
        report = await self._actions.ask(lambda sessions: sessions.manage(session_id, "diff"))
        if report is None:
            return
        comments = self._comments.setdefault(session_id, LineComments())
        in_worktree = report["source"] == "worktree"
        screen = ChangesScreen(session_id, report["message"], comments, in_worktree=in_worktree)
        act = await self._app.push_screen_wait(screen)
        if act == "send":
            await self._send_comments(session_id, comments)
        elif len(comments):
            self._app.notify(f"Unsent comments: {len(comments)}. F9 shows them.")
        if act == "merge":
            await self._actions.ask_and_manage("merge", session_id)
        elif act == "discard":
            await self._discard(session_id)

    async def _send_comments(self, session_id: str, comments: LineComments) -> None:
        sent = [*comments]
        message = comments_message(sent)
        # Kept until the server has accepted them: a refusal must not lose typed text.
        if await self._actions.ask(lambda sessions: sessions.send(session_id, message)) is None:
            return
        comments.remove(sent)
        self._app.notify("The comment was sent." if len(sent) == 1 else f"{len(sent)} comments were sent.")
        shown = self._pump.conversation
        if shown is None or shown.session_id != session_id:
            self._on_screen.open(session_id)

    async def _discard(self, session_id: str) -> None:
        """Discards a worktree at once if nothing is lost; otherwise the server says what would be lost."""
        await self._actions.manage_or_ask(
            session_id, "discard", {}, "PERMISSION_DENIED", "Discard it anyway", {"confirm": True}
        )

    async def _rewind(self, session_id: str) -> None:
        listed = await self._actions.ask(lambda sessions: sessions.manage(session_id, "changes"))
        if listed is None:
            return
        points = [(point[1], visible(point[2])) for point in _CHECKPOINT.finditer(listed["message"])]
        chosen = await self._app.push_screen_wait(Pick("Restore the files to", points)) if points else None
        overwrites = "Later changes to these files are overwritten."
        if chosen and await self._actions.confirmed(overwrites, "Restore them"):
            await self._actions.managed(session_id, "rewind", {"text": chosen, "confirm": True})

    async def _move(self, machine: str, session_id: str) -> None:
        """Moves a session to another machine of the fleet; during a turn, after it if the user agrees."""
        in_fleet = await self._actions.ask(lambda sessions: sessions.is_in_fleet())
        if in_fleet is None:
            return
        if not in_fleet:
            self._app.notify("Sessions can be moved only in a fleet.", severity="warning")
            return
        machine = machine or await self._pick_machine(session_id) or ""
        if machine:
            wanted = {"machine": machine}
            await self._actions.manage_or_ask(
                session_id, "move", wanted, "SESSION_BUSY", "Move it after its turn", {**wanted, "wait": True}
            )

    async def _pick_machine(self, session_id: str) -> str | None:
        """A machine with sessions, or a typed name: a fleet lists the others when it refuses."""
        rows = {row.session_id: row.machine or "" for row in (*self._pump.stored, *self._pump.live)}
        here = rows.get(session_id, "")
        others = sorted({*rows.values()} - {here, ""})
        choices = [*((name, visible(name)) for name in others), ("", "another machine, by name")]
        title = f"Move the session from {here} to" if here else "Move the session to"
        chosen = await self._app.push_screen_wait(Pick(visible(title), choices))
        return await self._app.push_screen_wait(AskLine("Name or id of the machine")) if chosen == "" else chosen


def _continues(summary: Mapping[str, Any]) -> bool:
    """Whether the session continues automatically after a usage limit."""
    return bool((summary.get("limit") or {}).get("continuesAt"))


def _absolute(directory: str, base: str) -> str:
    return os.path.normpath(os.path.join(base, os.path.expanduser(directory)))
