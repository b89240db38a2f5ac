"""The interactive client in a terminal with line editing, history and completion, by `prompt_toolkit`.

It is loaded only in a terminal, and only where it is installed (the extra `tui`). What is typed as a command is kept in
a private file for each server; answers to questions are kept nowhere.
"""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import anyio
from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, WordCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import DummyHistory, History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from ...private_files import open_private, private_directory, replace_file
from .candidates import Candidates
from .terminal import Screen

_MOST_KEPT = 1000
_LONGEST_KEPT = 10_000


class EditingScreen(Screen):
    """A `Screen` on which lines are edited. Ctrl-C clears a line that was begun; on an empty one it interrupts."""

    edits = True

    def __init__(self, history: Path, interrupt: Callable[[], None]) -> None:
        super().__init__()
        self._interrupt = interrupt
        self._showing: set[asyncio.Future[None]] = set()
        self._completer = _CommandCompleter()
        self._commands: PromptSession[str] = PromptSession(
            history=CommandHistory(history),
            completer=self._completer,
            complete_while_typing=False,
            enable_history_search=True,
            key_bindings=_key_bindings(),
        )
        self._answers: PromptSession[str] = PromptSession(
            history=DummyHistory(), complete_while_typing=False, key_bindings=_key_bindings()
        )
        self._reading: PromptSession[str] | None = None

    def complete_with(self, candidates: Candidates) -> None:
        self._completer.candidates = candidates

    async def read_command(self) -> str | None:
        return await self._read(self._commands, "> ")

    async def read_line(self, prompt: str, choices: Sequence[str] = ()) -> str | None:
        self._answers.completer = WordCompleter([*choices], sentence=True, ignore_case=True) if choices else None
        return await self._read(self._answers, prompt)

    async def _read(self, session: PromptSession[str], prompt: str) -> str | None:
        self._reading = session
        try:
            # Ctrl-C is a key while a line is edited; the signal is handled by the client itself.
            return await session.prompt_async(prompt, handle_sigint=False, set_exception_handler=False)
        except EOFError:
            return None
        except KeyboardInterrupt:
            self._interrupt()
            await anyio.sleep_forever()
            return None
        finally:
            self._reading = None
            with anyio.CancelScope(shield=True):
                await asyncio.gather(*self._showing)

    def _print(self, text: str, stream: TextIO) -> None:
        """Above the line that is edited, if there is one; in the order in which it was called."""
        if self._reading is None or not self._reading.app.is_running:
            super()._print(text, stream)
            return
        future = asyncio.ensure_future(run_in_terminal(lambda: print(text, file=stream, flush=True)))
        self._showing.add(future)
        future.add_done_callback(self._showing.discard)


def _key_bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("c-c")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return bindings


class _CommandCompleter(Completer):
    """Candidates as `prompt_toolkit` wants them; the server may be asked, so that they come asynchronously."""

    candidates: Candidates | None = None

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        return ()

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        if self.candidates is not None:
            for candidate in await self.candidates.of(document.text_before_cursor):
                yield Completion(candidate.text, -candidate.replaces, display_meta=candidate.remark)


class CommandHistory(History):
    """The commands of earlier runs in a file that nobody else can read, one JSON string on a line, the newest last.

    A file that cannot be read or written is no reason to fail: there is then no history.
    """

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def load_history_strings(self) -> list[str]:
        """The newest first. What is too much is taken out of the file."""
        lines: list[str] = []
        with suppress(OSError):
            lines = self._file.read_text(encoding="utf-8", errors="replace").splitlines()
            if len(lines) > 2 * _MOST_KEPT:
                lines = lines[-_MOST_KEPT:]
                replace_file(self._file, "".join(f"{line}\n" for line in lines).encode())
        return [command for command in map(_decoded, reversed(lines)) if command is not None]

    def store_string(self, string: str) -> None:
        """A command that begins with a space is not kept, as in shells: it may have a secret in it."""
        if string[:1] in ("", " ") or len(string) > _LONGEST_KEPT:
            return
        with suppress(OSError):
            private_directory(self._file.parent)
            descriptor = open_private(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            with open(descriptor, "a", encoding="utf-8") as file:
                file.write(json.dumps(string) + "\n")


def _decoded(line: str) -> str | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
