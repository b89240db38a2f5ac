"""The isolation: every session of every caller runs through the command of the settings."""

import shutil
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from claude_code_mcp import (
    Connections,
    ConversationStart,
    Enclosure,
    Home,
    InvalidArgument,
    IsolatedCommand,
    Isolation,
    SessionOptions,
)

from .settings import WrapperSettings

_IN_DIRECTORY = 'cd -- "$1" && shift && exec "$@"'
"""For `sh`: an isolated command is started in the root directory."""


class Wrapper(Enclosure):
    """A command before the command line of Claude Code. It hides no files."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words

    @property
    def kind(self) -> str:
        return "wrapper"

    def sees(self, path: str, options: SessionOptions, cwd: str) -> bool:
        return True

    @asynccontextmanager
    async def entered(
        self,
        argv: Sequence[str],
        options: SessionOptions,
        cwd: str,
        files: Iterable[Path],
        scratch: Path,
        environment: Mapping[str, str],
        *,
        conversation: ConversationStart | None = None,
        connected: bool = True,
    ) -> AsyncIterator[tuple[IsolatedCommand, Connections]]:
        command = ["/bin/sh", "-c", _IN_DIRECTORY, "sh", cwd, *self._words, *argv]
        yield IsolatedCommand(command, environment), Connections()


class WrappedSessions(Isolation):
    """Sessions live in the home of the user, and run through the command if one is configured. What needs more is
    refused by the base class."""

    @property
    def _words(self) -> tuple[str, ...]:
        return self.settings.section(WrapperSettings).words

    async def prepare(self) -> None:
        await super().prepare()
        if self._words and shutil.which(self._words[0]) is None:
            raise InvalidArgument(f"CLAUDE_CODE_MCP_WRAPPER_COMMAND: {self._words[0]} is not installed.")

    def is_plain(self, principal: str) -> bool:
        return super().is_plain(principal) and not self._words

    def of(self, principal: str, environment: Mapping[str, str], directory: str) -> Home:
        home = super().of(principal, environment, directory)
        if not self._words:
            return home
        return Home(home.config_dir, home.environment, enclosure=Wrapper(self._words), limits=home.limits)
