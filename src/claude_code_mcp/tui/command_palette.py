"""Everything that can be done, by name: for the palette, for commands in the input, and for the help."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from .screens import Dialog


@dataclass(frozen=True, slots=True)
class PersonCommand:
    """Something that a person can have done; `/name` in the input does the same as choosing it."""

    name: str
    summary: str
    keys: str = ""
    """The keys that do the same, for people."""
    for_session: bool = False
    """Whether it is done to a session, and is not there without one."""


COMMANDS = (
    PersonCommand("new", "begin a session: task, directory, model, mode, worktree", "F2"),
    PersonCommand("sessions", "go to the list of sessions", "F3"),
    PersonCommand("question", "go to the next open question, of any session", "Ctrl+N"),
    PersonCommand("search", "find a text in this conversation", "Ctrl+F", True),
    PersonCommand("copy", "copy the selected block, or the last answer", "y", True),
    PersonCommand("interrupt", "stop the turn and keep the session", "Esc", True),
    PersonCommand("model", "switch the model", "", True),
    PersonCommand("mode", "switch the permission mode", "", True),
    PersonCommand("diff", "what the session has changed in its worktree; merge or discard it there", "F9", True),
    PersonCommand("merge", "merge its worktree into the branch that it began on", "", True),
    PersonCommand("discard", "remove its worktree and its branch", "", True),
    PersonCommand("rewind", "take the files back to a message, where there are checkpoints", "", True),
    PersonCommand("rename", "give it a title", "", True),
    PersonCommand("tag", "give it a tag", "", True),
    PersonCommand("pin", "keep it at the top of the list", "", True),
    PersonCommand("unpin", "let it go down the list again", "", True),
    PersonCommand("archive", "leave it out of the list", "", True),
    PersonCommand("unarchive", "put it back on the list", "", True),
    PersonCommand("fork", "copy the conversation into a session of its own", "", True),
    PersonCommand("export", "write the conversation to a file", "", True),
    PersonCommand("share", "let somebody else watch it, or answer too", "", True),
    PersonCommand("unshare", "take that back from somebody", "", True),
    PersonCommand("cancel", "end the session: it takes no more messages", "", True),
    PersonCommand("delete", "remove the session for good", "", True),
    PersonCommand("costs", "what sessions have cost", "F4"),
    PersonCommand("mcp", "the MCP servers of the hub", "F5"),
    PersonCommand("list", "hide or show the list of sessions", "Ctrl+B"),
    PersonCommand("theme", "light or dark", "Ctrl+T"),
    PersonCommand("help", "all keys", "F1"),
    PersonCommand("quit", "leave; sessions run on", "Ctrl+Q, Ctrl+C twice"),
)
NAMES = tuple(command.name for command in COMMANDS)


def matching(commands: Iterable[PersonCommand], wanted: str) -> list[PersonCommand]:
    """The commands with all of these words in name or summary; those whose name begins with the text first."""
    terms = wanted.casefold().split()
    found = [command for command in commands if all(term in f"{command.name} {command.summary}" for term in terms)]
    return sorted(found, key=lambda command: not command.name.startswith("".join(terms)))


class CommandPalette(Dialog):
    """Takes a text, and shows the commands that fit; the value is the name of the one that was chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,ctrl+n", "move(1)", "Down", show=False, priority=True),
        Binding("up,ctrl+p", "move(-1)", "Up", show=False, priority=True),
        Binding("pagedown", "move(8)", "Page down", show=False, priority=True),
        Binding("pageup", "move(-8)", "Page up", show=False, priority=True),
    ]

    def __init__(self, *, has_session: bool) -> None:
        super().__init__()
        self._possible = [command for command in COMMANDS if has_session or not command.for_session]

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Input(placeholder="what to do", compact=True, select_on_focus=False)
            yield OptionList(markup=False, compact=True)

    def on_mount(self) -> None:
        self.query_one(OptionList).can_focus = False
        self.query_one(Input).focus()
        self._show("")

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._show(event.value)

    def _show(self, wanted: str) -> None:
        listing = self.query_one(OptionList)
        found = matching(self._possible, wanted)
        listing.set_options([Option(_line(command), command.name) for command in found])
        listing.highlighted = 0 if found else None

    def action_move(self, step: int) -> None:
        listing = self.query_one(OptionList)
        if listing.option_count:
            at = (listing.highlighted or 0) + step
            listing.highlighted = (
                min(max(0, at), listing.option_count - 1) if abs(step) > 1 else at % (listing.option_count)
            )

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        chosen = self.query_one(OptionList).highlighted_option
        if chosen is not None:
            self.dismiss(chosen.id)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(event.option.id)


def _line(command: PersonCommand) -> Text:
    keys = f" ({command.keys})" if command.keys else ""
    line = Text(command.name, "bold", no_wrap=True, overflow="ellipsis", end="")
    return line.append(f"  {command.summary}{keys}", "not bold")
