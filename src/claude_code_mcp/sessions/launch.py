"""From options to a process that is ready for its first message."""

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..claude.argv import Opening, build_command
from ..claude.dialect import check_values
from ..claude.environment import build_environment
from ..claude.executable import find_executable
from ..claude.leftovers import new_mark
from ..claude.process import ClaudeProcess, Owner
from ..claude.registrations import own_registrations
from ..claude.scratch import prepare_command
from ..errors import InvalidArgument
from ..model.options import SessionOptions


@dataclass(frozen=True, slots=True)
class Launcher:
    """Starts Claude Code processes in one environment."""

    environment: Mapping[str, str]
    executable: str | None
    start_timeout: float
    nested: Mapping[str, str] = field(default_factory=dict)
    """Variables for servers of ours inside a session; empty where there may be none."""
    own_addresses: Sequence[str] = ()
    """Where this very server is reached over HTTP. Read at every start of a process."""

    async def check(self, options: SessionOptions, cwd: str) -> None:
        """Raises what would make a start fail for certain, before anything is spawned."""
        executable = self._executable(options)
        _check_directory("cwd", cwd)
        for directory in options.additional_directories:
            _check_directory("additional_directories", os.path.join(cwd, directory))
        build_command(options, Opening(""), Path())
        _check_environment(options.env)
        _check_root(options, {**self.environment, **options.env})
        await check_values(options, executable, self.environment)

    def _executable(self, options: SessionOptions) -> str:
        return find_executable(options.executable or self.executable, self.environment)

    async def start(
        self,
        owner: Owner,
        options: SessionOptions,
        opening: Opening,
        cwd: str,
        *,
        budget: float | None = None,
        hosted: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> ClaudeProcess:
        """Spawns the process; it is not yet initialised. `hosted` are MCP servers that live in this process; one that
        the session has configured itself under the same name comes first."""
        if hosted:
            options = options.model_copy(update={"mcp_servers": {**hosted, **(options.mcp_servers or {})}})
        mark = new_mark()
        executable = self._executable(options)
        left_out = await asyncio.to_thread(self._left_out, options, cwd)
        command, scratch = await asyncio.to_thread(
            prepare_command, options, opening, mark, budget=budget, left_out=left_out
        )
        variables = {**self.nested, **options.env, **command.variables}
        environment = build_environment(self.environment, variables, mark)
        argv = [executable, *command.arguments]
        return await ClaudeProcess.start(owner, argv, cwd=cwd, environment=environment, mark=mark, scratch=scratch)

    def _left_out(self, options: SessionOptions, cwd: str) -> Sequence[Mapping[str, Any]]:
        """The registrations of this very server that the session must not start, or call back to."""
        if self.nested or options.strict_mcp_config:
            return ()
        commands = own_registrations({**self.environment, **options.env}, cwd)
        addresses = [{"serverUrl": address} for address in self.own_addresses]
        return [*({"serverCommand": list(words)} for words in commands), *addresses]

    async def initialize(
        self, process: ClaudeProcess, hooks: Mapping[str, Any] | None = None, hosted: Collection[str] = ()
    ) -> None:
        """Waits until it says that it is ready. `hooks` say which moments it is to report and have decided, `hosted`
        which MCP servers it reaches through us."""
        wishes: dict[str, Any] = {} if hooks is None else {"hooks": hooks}
        if hosted:
            wishes["sdkMcpServers"] = list(hosted)
        await process.request("initialize", timeout=self.start_timeout, **wishes)


def _check_directory(field: str, path: str) -> None:
    if "\0" in path or not os.path.isdir(path):
        raise InvalidArgument(f"{field}: {path!r} is not a directory.", field=field)


def _check_environment(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        if not name or "=" in name or "\0" in name + value:
            raise InvalidArgument(f"env: {name!r} cannot be set in an environment.", field="env")


def _check_root(options: SessionOptions, environment: Mapping[str, str]) -> None:
    bypass = options.dangerously_skip_permissions or options.permission_mode == "bypassPermissions"
    if bypass and hasattr(os, "geteuid") and os.geteuid() == 0 and environment.get("IS_SANDBOX") != "1":
        raise InvalidArgument(
            "Claude Code refuses to bypass permissions when it runs as root. Run this server as another user, "
            "or set IS_SANDBOX=1 if the machine is a throw-away sandbox.",
            field="permission_mode",
        )
