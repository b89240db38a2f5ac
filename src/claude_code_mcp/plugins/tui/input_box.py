"""The message input, with completion of slash commands and files. Only `files` reads the disk: one directory, and no
more entries than can be shown. Enter sends, Ctrl+J or Shift+Enter inserts a line break. Only the user's keys remove
typed text."""

import os
from collections.abc import Callable, Iterable
from typing import ClassVar, NamedTuple

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.strip import Strip
from textual.widgets import OptionList, TextArea
from textual.widgets.option_list import Option

from ...client.connections import in_thread

MAX_COMPLETIONS = 8
_MAX_READ = 2_000


class Word(NamedTuple):
    """The word being completed: its sign and the text after it, from `start` on."""

    sign: str
    text: str
    start: int


def word_before(line: str, column: int, *, is_first_line: bool) -> Word | None:
    """The command or mention that ends at the cursor; None if there is neither."""
    before = line[:column]
    start = max(before.rfind(" "), before.rfind("\t")) + 1
    word = before[start:]
    if word.startswith("@"):
        return Word("@", word[1:], start)
    if word.startswith("/") and start == 0 and is_first_line:
        return Word("/", word[1:], start)
    return None


def commands(known: Iterable[str], beginning: str) -> list[str]:
    """The commands with this prefix, shortest first."""
    wanted = beginning.casefold()
    fitting = {name for name in known if name.casefold().startswith(wanted) and name != beginning}
    return sorted(fitting, key=lambda name: (len(name), name))[:MAX_COMPLETIONS]


def files(directory: str, beginning: str) -> list[str]:
    """The entries of a directory with this prefix, as relative paths; directories end in a slash."""
    folder, _, name = beginning.rpartition("/")
    place = os.path.join(directory, os.path.expanduser(folder)) if folder else directory
    found: list[str] = []
    try:
        with os.scandir(place) as entries:
            for number, entry in enumerate(entries):
                if number >= _MAX_READ:
                    break
                fits = entry.name.casefold().startswith(name.casefold())
                if fits and entry.name.isprintable() and (name.startswith(".") or not entry.name.startswith(".")):
                    found.append(entry.name + ("/" if entry.is_dir() else ""))
    except (OSError, ValueError):
        return []
    prefix = f"{folder}/" if folder else ""
    return [prefix + entry for entry in sorted(found) if prefix + entry != beginning][:MAX_COMPLETIONS]


_MAX_KEPT = 100
_OPENS = {"question_mark": "help", "colon": "commands"}
"""Keys with another meaning while the input is empty."""
_NEW_LINE = ("ctrl+j", "shift+enter", "alt+enter")


class InputBox(Vertical):
    """The input and, above it, the completions of the word at the cursor."""

    DEFAULT_CSS = """
    InputBox { height: auto; max-height: 12; }
    InputBox TextArea { height: auto; min-height: 3; max-height: 8; border: round $primary; padding: 0 1; }
    InputBox TextArea:focus { border: round $accent; }
    InputBox OptionList { height: auto; max-height: 8; min-width: 12; display: none; border: none; padding: 0 2; }
    """

    class Sent(Message):
        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Wanted(Message):
        """A key for another command was pressed while the input was empty; `command` is its name."""

        def __init__(self, command: str) -> None:
            super().__init__()
            self.command = command

    def __init__(self, *, id: str) -> None:  # noqa: A002 - as Textual has it
        super().__init__(id=id)
        self.known_commands: Callable[[], list[str]] = list
        self.directory: Callable[[], str] = lambda: ""

    def compose(self) -> ComposeResult:
        yield _Completions(markup=False)
        yield MessageArea(self)

    @property
    def area(self) -> "MessageArea":
        return self.query_one(MessageArea)

    @property
    def text(self) -> str:
        return self.area.text


class _Completions(OptionList, can_focus=False):
    """The completions for Tab. Never takes the focus, so that keys go to the input. It has a minimum width: between two
    terminal sizes it may get no columns, and Textual would then end the interface with an error while wrapping."""


class MessageArea(TextArea):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.command('interrupt')", "Interrupt"),
        Binding("ctrl+j", "new_line", "New line", show=False),
    ]

    def __init__(self, box: InputBox) -> None:
        super().__init__(
            soft_wrap=True,
            show_line_numbers=False,
            highlight_cursor_line=False,
            placeholder="Message; Enter sends, Ctrl+J new line, / commands, @ files, : commands",
        )
        self._box = box
        self._sent: list[str] = []
        self._at: int | None = None
        """The index of the shown sent message."""
        self._draft = ""
        self._word: Word | None = None

    @property
    def _completions(self) -> _Completions:
        return self._box.query_one(_Completions)

    def render_line(self, y: int) -> Strip:
        # Textual wraps the placeholder into the available columns and fails if there are none, which happens briefly
        # when the terminal is resized or this part is shown again.
        return super().render_line(y) if self.content_size.width > 0 else Strip.blank(self.size.width)

    async def _on_key(self, event: events.Key) -> None:
        handled = self._handle(event)
        if handled:
            event.stop()
            event.prevent_default()
            return
        await super()._on_key(event)

    async def _on_paste(self, event: events.Paste) -> None:
        """Inserts pasted text with its line breaks, without control characters."""
        event.stop()
        event.prevent_default()
        lines = event.text.replace("\r\n", "\n").replace("\r", "\n")
        self._replace_via_keyboard(
            "".join(character for character in lines if character in "\n\t" or character.isprintable()), *self.selection
        )

    def _handle(self, event: events.Key) -> bool:
        """Whether the key has a meaning here; otherwise it is typed."""
        key, completing = event.key, bool(self._completions.display)
        if key in _NEW_LINE:
            self.insert("\n")
        elif key == "enter":
            self._send()
        elif key == "tab" and completing:
            self._complete()
        elif key in ("up", "down") and completing:
            (self._completions.action_cursor_up if key == "up" else self._completions.action_cursor_down)()
        elif key == "escape" and completing:
            self._completions.display = False
        elif key == "up" and self.cursor_at_first_line and self._sent:
            self._recall(-1)
        elif key == "down" and self.cursor_at_last_line and self._at is not None:
            self._recall(1)
        elif key in _OPENS and not self.text:
            self._box.post_message(InputBox.Wanted(_OPENS[key]))
        else:
            self._at = None if event.is_printable or key == "backspace" else self._at
            return False
        return True

    def _send(self) -> None:
        text = self.text
        if not text.strip():
            return
        self._sent = [*(sent for sent in self._sent if sent != text), text][-_MAX_KEPT:]
        self._at, self._draft = None, ""
        self.text = ""
        self._completions.display = False
        self._box.post_message(InputBox.Sent(text))

    def _recall(self, step: int) -> None:
        """Shows the previous or next sent message; after the last one, the typed text."""
        if self._at is None:
            self._draft = self.text
            self._at = len(self._sent)
        self._at = max(0, self._at + step)
        if self._at >= len(self._sent):
            self._at, self.text = None, self._draft
        else:
            self.text = self._sent[self._at]
        self.move_cursor(self.document.end)

    def restore_text(self, text: str) -> None:
        """Restores a message that could not be sent, before text typed since."""
        self.text = f"{text}\n{self.text}" if self.text else text
        self.move_cursor(self.document.end)

    def on_text_area_changed(self) -> None:
        self.run_worker(self._look_up(), exclusive=True, group="completing")

    async def _look_up(self) -> None:
        if self._at is not None:  # a recalled message is complete; the arrow keys continue to the next one
            self._completions.display = False
            return
        row, column = self.cursor_location
        word = word_before(self.document.get_line(row), column, is_first_line=row == 0)
        found: list[str] = []
        if word is not None and word.sign == "/":
            found = commands(self._box.known_commands(), word.text)
        elif word is not None:
            directory = self._box.directory()
            # The directory may be on a slow disk. The worker is exclusive: a key press meanwhile cancels this lookup.
            found = await in_thread(files, directory, word.text) if directory else []
        self._word = word
        self._completions.set_options([Option(name) for name in found])
        self._completions.highlighted = 0 if found else None
        self._completions.display = bool(found)

    def _complete(self) -> None:
        chosen, word = self._completions.highlighted, self._word
        if chosen is None or word is None:
            return
        name = str(self._completions.get_option_at_index(chosen).prompt)
        row, column = self.cursor_location
        ending = "" if name.endswith("/") else " "
        self.replace(f"{word.sign}{name}{ending}", (row, word.start), (row, column))
