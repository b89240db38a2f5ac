"""All commands by name: for Textual's command palette, for `/name` in the input, and for the help."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from textual import on
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.widgets import Input
from textual.worker import WorkerCancelled

from .main_screen import MainScreen


@dataclass(frozen=True, slots=True)
class NamedCommand:
    """A command; `/name` in the input is the same as choosing it in the palette."""

    name: str
    summary: str
    keys: str = ""
    """Its keys, as shown to people."""
    for_session: bool = False
    """Whether it needs a session; otherwise it is not offered."""

    @property
    def help(self) -> str:
        return f"{self.summary} ({self.keys})" if self.keys else self.summary


COMMANDS = (
    NamedCommand("new", "start a session: task, directory, model, mode, worktree", "F2"),
    NamedCommand("sessions", "go to the list of sessions", "F3"),
    NamedCommand("question", "go to the next open question, of any session", "Ctrl+N"),
    NamedCommand("search", "find text in this conversation", "Ctrl+F", True),
    NamedCommand("copy", "copy the selected block, or the last answer", "y", True),
    NamedCommand("interrupt", "stop the turn and keep the session", "Esc", True),
    NamedCommand("wait", "wait for a usage limit to reset, then continue; run it again to stop waiting", "F6", True),
    NamedCommand("continue", "continue now after a usage limit", "F7", True),
    NamedCommand("model", "switch the model", "", True),
    NamedCommand("mode", "switch the permission mode", "", True),
    NamedCommand("diff", "review changes; merge or discard a worktree", "F9", True),
    NamedCommand("merge", "merge the worktree into the branch it started from", "", True),
    NamedCommand("discard", "remove the worktree and its branch", "", True),
    NamedCommand("rewind", "restore files to an earlier message (checkpoints)", "", True),
    NamedCommand("move", "move the session to another machine of the fleet", "", True),
    NamedCommand("rename", "change the title", "", True),
    NamedCommand("tag", "set a tag", "", True),
    NamedCommand("pin", "keep the session at the top of the list", "", True),
    NamedCommand("unpin", "stop keeping the session at the top of the list", "", True),
    NamedCommand("archive", "hide the session from the list", "", True),
    NamedCommand("unarchive", "show the session in the list again", "", True),
    NamedCommand("fork", "copy the conversation into a new session", "", True),
    NamedCommand("export", "save the conversation to a file", "", True),
    NamedCommand("share", "let another person watch or answer", "", True),
    NamedCommand("unshare", "stop sharing with a person", "", True),
    NamedCommand("cancel", "cancel the session permanently: it accepts no more messages", "", True),
    NamedCommand("delete", "delete the session permanently", "", True),
    NamedCommand("costs", "what sessions have cost", "F4"),
    NamedCommand("mcp", "the MCP servers of the hub", "F5"),
    NamedCommand("list", "hide or show the list of sessions", "Ctrl+B"),
    NamedCommand("theme", "switch between light and dark", "Ctrl+T"),
    NamedCommand("help", "show all keys", "F1"),
    NamedCommand("quit", "exit the interface; sessions keep running", "Ctrl+Q, Ctrl+C twice"),
)
NAMES = tuple(command.name for command in COMMANDS)


class CommandProvider(Provider):
    """Provides the commands to Textual's palette; without a session, only those that need none."""

    def _possible(self) -> Iterator[tuple[NamedCommand, Callable[[], Any]]]:
        main = self.screen
        has_session = isinstance(main, MainScreen) and main.target is not None
        for command in COMMANDS:
            if has_session or not command.for_session:
                yield command, partial(self.app.run_action, f"command('{command.name}')")

    async def discover(self) -> Hits:
        for command, run in self._possible():
            yield DiscoveryHit(command.name, run, command.name, command.help)

    async def search(self, query: str) -> Hits:
        """Commands by name, best match first, then those with all terms in their name or summary."""
        matcher, terms = self.matcher(query), query.casefold().split()
        for command, run in self._possible():
            score = matcher.match(command.name)
            if command.name.startswith(query.casefold()):
                score += 100
            described = f"{command.name} {command.help}".casefold()
            if score or all(term in described for term in terms):
                yield Hit(score or 0.1, matcher.highlight(command.name), run, command.name, command.help)


class SearchedPalette(CommandPalette):
    """Textual's palette, except that Enter waits for the search. Otherwise Enter right after the last letter would run
    the first result of an earlier search."""

    @on(Input.Submitted)
    async def finish_search(self) -> None:
        # Before Textual's own handler, which runs next and takes the highlighted entry.
        for search in [worker for worker in self.workers if worker.node is self and not worker.is_finished]:
            with contextlib.suppress(WorkerCancelled):
                await search.wait()
