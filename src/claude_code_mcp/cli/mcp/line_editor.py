"""Line editing and completion for `mcp connect`, by `prompt_toolkit`, which only the extra `tui` installs.

Imported in a terminal alone. What is typed as a command is kept in a private file for each server; answers to questions
are kept nowhere. What a server does not answer in time, or refuses, completes nothing.
"""

import asyncio
import json
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import anyio
import mcp_types as types
from mcp import MCPError
from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, WordCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import DummyHistory, History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from ...core.errors import ClaudeCodeError
from ...core.private_files import open_private, private_directory, replace_file
from ...hub.hub import Hub
from .live import complete
from .terminal import Screen, clean, one_line

_MAX_WAIT = 3.0
"""Seconds for a list or a suggestion of the server."""
_MAX_COMPLETIONS = 200
_VARIABLE = re.compile(r"\{([A-Za-z0-9_]+)\*?\}")


class Candidate(NamedTuple):
    """A text that may stand where the last `replaces` characters do."""

    text: str
    replaces: int
    remark: str = ""


class Candidates:
    """Completes the lines for one server."""

    def __init__(self, hub: Hub, server: str, commands: Mapping[str, tuple[str, str]]) -> None:
        """`commands` are the commands of the client, each with its usage and a remark."""
        self._hub = hub
        self._server = server
        self._commands = commands
        self._for_arguments: dict[str, Callable[[str], Awaitable[list[Candidate]]]] = {
            "call": self._call,
            "read": self._address,
            "watch": self._address,
            "prompt": self._prompt,
            "complete": self._reference,
        }

    async def of(self, line: str) -> list[Candidate]:
        """What may follow the beginning of a line; fresh from the server where that is needed."""
        command, space, rest = line.lstrip().partition(" ")
        if not space:
            known = ((_spaced(name, usage), remark) for name, (usage, remark) in self._commands.items())
            return _beginning_like(command, known)
        complete_rest = self._for_arguments.get(command)
        if complete_rest is None:
            return []
        with suppress(ClaudeCodeError, MCPError), anyio.move_on_after(_MAX_WAIT):
            return (await complete_rest(rest.lstrip()))[:_MAX_COMPLETIONS]
        return []

    async def _call(self, rest: str) -> list[Candidate]:
        tools = {tool.tool.name: tool.tool for tool in await self._hub.tools(self._server)}
        name, space, arguments = rest.partition(" ")
        if not space:
            named = ((_spaced(tool.name, _fields(tool)), tool.description or "") for tool in tools.values())
            return _beginning_like(name, named)
        fields = _fields(tools[name]) if name in tools else {}
        known_arguments, word = _last_word(arguments)
        field, separator, value = word.partition("=")
        if not separator:
            return _beginning_like(
                word, ((f"{each}=", _remark(fields[each])) for each in fields if each not in known_arguments)
            )
        return _beginning_like(value, ((choice, "") for choice in _choices(fields.get(field))))

    async def _prompt(self, rest: str) -> list[Candidate]:
        prompts = {prompt.name: prompt for prompt in await self._hub.prompts(self._server)}
        name, space, arguments = rest.partition(" ")
        if not space:
            named = ((_spaced(each.name, each.arguments), each.description or "") for each in prompts.values())
            return _beginning_like(name, named)
        declared = (prompts[name].arguments or []) if name in prompts else []
        known_arguments, word = _last_word(arguments)
        argument, separator, value = word.partition("=")
        if separator:
            # What a server suggests replaces what was typed, whatever it begins with. A value with spaces is quoted.
            values = await self._suggested(name, argument, value, known_arguments)
            return [Candidate(f'"{each}"' if " " in each else each, len(value)) for each in values]
        return _beginning_like(
            word, ((f"{a.name}=", a.description or "") for a in declared if a.name not in known_arguments)
        )

    async def _address(self, typed: str) -> list[Candidate]:
        _, typed = _last_word(typed)
        resources: list[types.Resource] = await self._hub.resources(self._server)
        templates = await self._hub.resource_templates(self._server)
        known = [(str(each.uri), each.description or each.name) for each in resources]
        for template in (each.uri_template for each in templates):
            variable = _VARIABLE.search(template)
            literal = template[: variable.start()] if variable else template
            if variable is None or not typed.startswith(literal):
                known.append((literal, template))
                continue
            values = await self._suggested(template, variable[1], typed[len(literal) :], {})
            known += [(f"{literal}{value}{template[variable.end() :]}", "") for value in values]
        return _beginning_like(typed, known)

    async def _reference(self, rest: str) -> list[Candidate]:
        """The arguments of `complete`: a prompt or a template, one of its arguments, and a beginning."""
        name, space, arguments = rest.partition(" ")
        prompts = await self._hub.prompts(self._server)
        templates = await self._hub.resource_templates(self._server)
        if not space:
            named = [(f"{prompt.name} ", prompt.description or "") for prompt in prompts if prompt.arguments]
            return _beginning_like(name, [*named, *((f"{each.uri_template} ", each.name) for each in templates)])
        if " " in arguments:
            return []
        declared = [a.name for prompt in prompts if prompt.name == name for a in prompt.arguments or []]
        return _beginning_like(arguments, ((each, "") for each in [*declared, *_VARIABLE.findall(name)]))

    async def _suggested(self, name: str, argument: str, value: str, known_arguments: Mapping[str, str]) -> list[str]:
        found = await complete(self._hub, self._server, name, argument, value, known_arguments)
        return [clean(str(each)) for each in found.data.get("values") or ()]


def _last_word(text: str) -> tuple[dict[str, str], str]:
    """The NAME=VALUE pairs before the last word, and the last word."""
    *before, last = text.split(" ")
    pairs = (word.partition("=") for word in before)
    return {name: value for name, separator, value in pairs if separator}, last


def _beginning_like(typed: str, known: Iterable[tuple[str, str]]) -> list[Candidate]:
    return [
        Candidate(clean(text), len(typed), one_line(remark, 60)) for text, remark in known if text.startswith(typed)
    ]


def _spaced(name: str, arguments: object) -> str:
    """A name, with a space behind it where something follows."""
    return f"{name} " if arguments else name


def _fields(tool: types.Tool) -> dict[str, Any]:
    properties = tool.input_schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _remark(field: Any) -> str:
    if not isinstance(field, dict):
        return ""
    kind = field.get("type")
    return str(field.get("description") or field.get("title") or (kind if isinstance(kind, str) else ""))


def _choices(field: Any) -> list[str]:
    """The values of a parameter that has fixed ones."""
    if not isinstance(field, dict):
        return []
    if field.get("type") == "boolean":
        return ["true", "false"]
    values = field.get("enum")
    return [value if isinstance(value, str) else str(value) for value in values] if isinstance(values, list) else []


# -- the terminal ------------------------------------------------------------------------------------------------------


_MAX_KEPT = 1000
_MAX_KEPT_LINE = 10_000


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

    def complete_from(self, hub: Hub, server: str, commands: Mapping[str, tuple[str, str]]) -> None:
        self._completer.candidates = Candidates(hub, server, commands)

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
            # Until the cancellation arrives: a line, or the end of input, would be acted on before it.
            await anyio.sleep_forever()
            return None
        finally:
            self._reading = None
            with anyio.CancelScope(shield=True):
                # What is still to be shown comes before whatever is printed next.
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
            if len(lines) > 2 * _MAX_KEPT:
                lines = lines[-_MAX_KEPT:]
                replace_file(self._file, "".join(f"{line}\n" for line in lines).encode())
        commands = []
        for line in reversed(lines):
            with suppress(ValueError):
                command = json.loads(line)
                commands += [command] if isinstance(command, str) else []
        return commands

    def store_string(self, string: str) -> None:
        """A command that begins with a space is not kept, as in shells: it may have a secret in it."""
        if string[:1] in ("", " ") or len(string) > _MAX_KEPT_LINE:
            return
        with suppress(OSError):
            private_directory(self._file.parent)
            descriptor = open_private(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            with open(descriptor, "a", encoding="utf-8") as file:
                file.write(json.dumps(string) + "\n")
