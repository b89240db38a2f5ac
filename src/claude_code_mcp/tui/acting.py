"""What a person does to sessions: begin, send, interrupt, switch model and mode, rename, fork, export.

Every act is a call of a tool, in a worker: a refusal is told, and nothing on the screen waits for it.
"""

import os
from collections.abc import Callable
from typing import Any

from textual.app import App

from ..client.live_sessions import LiveSessions
from ..model.text import visible
from ..shared.client import CallFailed, NotRunning
from .input_box import MessageArea
from .link import ServerLink
from .popups import MODES, AskLine, NewSession, NewSessionRequest, Pick
from .pump import Pump
from .views import CostsScreen, ServersScreen

OWN_COMMANDS = ("new", "model", "mode", "rename", "fork", "export", "costs", "mcp", "help", "quit")


class Acting(App[None]):
    """The acts of the application."""

    link: ServerLink
    pump: Pump
    directory: str

    def open_session(self, session_id: str) -> None:
        raise NotImplementedError

    @property
    def target(self) -> str | None:
        """The session that acts are about."""
        raise NotImplementedError

    # -- messages ---------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Sends a message, does what a command of ours says, or begins a session."""
        command, _, rest = text.strip().partition(" ")
        if command.startswith("/") and command[1:] in OWN_COMMANDS:
            self._command(command[1:], rest.strip())
        elif self.pump.conversation is None:
            self.run_worker(self._create(NewSessionRequest(text, {"workingDirectory": self.directory})))
        else:
            self.run_worker(self._send(text))

    def _command(self, name: str, argument: str) -> None:
        act: dict[str, Callable[[], Any]] = {
            "new": self.action_new,
            "model": lambda: self._manage("model", argument) if argument else self.action_model(),
            "mode": lambda: self._manage("mode", argument) if argument else self.action_mode(),
            "rename": lambda: self._manage("rename", argument) if argument else self.action_rename(),
            "fork": self.action_fork,
            "export": lambda: self._manage("export", None, format=argument or "markdown"),
            "costs": self.action_costs,
            "mcp": self.action_servers,
            "help": self.action_help,
            "quit": self.exit,
        }
        act[name]()

    def action_help(self) -> None:
        raise NotImplementedError

    async def ask(self, work: Callable[[LiveSessions], Any]) -> Any:
        """What the server answers; None if it refuses or is gone, which is told then."""
        try:
            return await self.link.do(work)
        except (CallFailed, NotRunning) as error:
            self.notify(visible(str(error)), severity="error", markup=False)
            return None

    async def _send(self, text: str) -> None:
        conversation = self.pump.conversation
        assert conversation is not None
        joins = conversation.busy
        if await self.ask(lambda sessions: sessions.send(conversation.session_id, text)) is None:
            self.screen_stack[0].query_one(MessageArea).put_back(text)
        elif joins:
            conversation.sent(text)

    async def _create(self, request: NewSessionRequest) -> None:
        made = await self.ask(lambda sessions: sessions.create(request.prompt, **request.options))
        if made is None:
            self.screen_stack[0].query_one(MessageArea).put_back(request.prompt)
        else:
            self.pump.list_again()
            self.open_session(made["sessionId"])

    def action_interrupt(self) -> None:
        conversation = self.pump.conversation
        if conversation is not None and conversation.busy:
            self.run_worker(self._interrupt(conversation.session_id))

    async def _interrupt(self, session_id: str) -> None:
        report = await self.ask(lambda sessions: sessions.interrupt(session_id))
        for message in (report or {}).get("droppedMessages") or ():
            self.notify(visible(f"Never read: {message}"), markup=False, severity="warning")

    # -- sessions ---------------------------------------------------------------------------------------------

    def action_new(self) -> None:
        self.run_worker(self._new())

    async def _new(self) -> None:
        has_worktrees = await self.ask(lambda sessions: sessions.takes("claude_create_session", "worktree"))
        request = await self.push_screen_wait(NewSession(self.directory, has_worktrees=bool(has_worktrees)))
        if request is not None:
            directory = _absolute(request.options.get("workingDirectory") or "", self.directory)
            await self._create(NewSessionRequest(request.prompt, {**request.options, "workingDirectory": directory}))

    def action_rename(self) -> None:
        self.run_worker(self._ask_and_manage("rename", "New title (empty: none)"))

    def action_model(self) -> None:
        self.run_worker(self._ask_and_manage("model", "Model, or an alias such as opus (empty: Claude Code's choice)"))

    async def _ask_and_manage(self, action: str, title: str) -> None:
        if self.target is not None:
            text = await self.push_screen_wait(AskLine(title))
            if text is not None:
                self._manage(action, text)

    def action_mode(self) -> None:
        self.run_worker(self._pick_mode())

    async def _pick_mode(self) -> None:
        mode = await self.push_screen_wait(Pick("Permission mode", [(mode, mode) for mode in MODES]))
        if mode is not None:
            self._manage("mode", mode)

    def action_export(self) -> None:
        self.run_worker(self._pick_export())

    async def _pick_export(self) -> None:
        kinds = [("markdown", "Markdown"), ("html", "one page of HTML")]
        kind = await self.push_screen_wait(Pick("Export as", kinds))
        if kind is not None:
            self._manage("export", None, format=kind)

    def action_fork(self) -> None:
        self._manage("fork", None)

    def _manage(self, action: str, text: str | None, **more: str) -> None:
        session_id = self.target
        if session_id is None:
            self.notify("There is no session to do that to.", severity="warning")
            return
        self.run_worker(self._managed(session_id, action, {**more, **({} if text is None else {"text": text})}))

    async def _managed(self, session_id: str, action: str, more: dict[str, str]) -> None:
        done = await self.ask(lambda sessions: sessions.manage(session_id, action, **more))
        if done is None:
            return
        self.notify(visible(done.get("message") or "Done."), markup=False)
        self.pump.list_again()
        if action == "fork":
            self.open_session(done["sessionId"])

    def action_menu(self) -> None:
        self.run_worker(self._menu())

    async def _menu(self) -> None:
        acts = {
            "new": "New session…",
            "model": "Switch the model…",
            "mode": "Switch the permission mode…",
            "rename": "Rename…",
            "fork": "Fork: a copy that goes on by itself",
            "export": "Export…",
            "interrupt": "Interrupt the turn",
            "costs": "Costs",
            "servers": "MCP servers",
        }
        chosen = await self.push_screen_wait(Pick("What to do", list(acts.items())))
        if chosen is not None:
            getattr(self, f"action_{chosen}")()

    # -- views ------------------------------------------------------------------------------------------------

    def action_costs(self) -> None:
        self.push_screen(CostsScreen(self.link.do))

    def action_servers(self) -> None:
        self.push_screen(ServersScreen(self.link.do))


def _absolute(directory: str, base: str) -> str:
    return os.path.normpath(os.path.join(base, os.path.expanduser(directory)))
