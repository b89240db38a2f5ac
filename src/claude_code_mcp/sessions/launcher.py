"""From options to a process that is ready for its first message."""

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import json_text
from ..claude.command_line import ConversationStart, build_command, prepare_command
from ..claude.executable import find_executable
from ..claude.open_sessions import process_with
from ..claude.process import ClaudeProcess, ProcessListener
from ..claude.refusals import check_agents, check_servers, refused_argument
from ..claude.user_config import config_directory, own_registrations
from ..claude.versions import check_values
from ..config import Settings
from ..errors import InvalidArgument, ProcessFailed, SessionBusy
from ..model.options import SessionOptions
from ..processes.environment import build_environment
from ..processes.leftovers import end_stale, new_mark
from ..store.transcripts import Transcripts

_CONNECT_MILLISECONDS = 30_000


_LISTED_WITHIN = 2.0


_BETWEEN_LOOKS = 0.1


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
        build_command(options, ConversationStart(""), Path())
        _check_environment(options.env)
        _check_root(options, {**self.environment, **options.env})
        await check_values(options, executable, self.environment)

    def end_stray(self, session_id: str) -> None:
        """Ends a process that a killed server has left with this session, if it is not gone by itself yet."""
        pid = process_with(session_id, config_directory(self.environment))
        if pid is not None:
            end_stale(pid)

    def check_alone(self, session_id: str) -> None:
        """SessionBusy if a Claude Code process has the session open. Reads a few small files."""
        pid = process_with(session_id, config_directory(self.environment))
        if pid is not None:
            raise SessionBusy(
                f"Session {session_id} is open in another Claude Code process ({pid}). Close it there first; "
                "a fork of the session is possible at any time.",
                session_id=session_id,
                pid=pid,
            )

    def _executable(self, options: SessionOptions) -> str:
        return find_executable(options.executable or self.executable, self.environment)

    async def start(
        self,
        owner: ProcessListener,
        options: SessionOptions,
        opening: ConversationStart,
        cwd: str,
        *,
        budget: float | None = None,
        hosted: Mapping[str, Mapping[str, Any]] | None = None,
        rules: Mapping[str, Sequence[str]] | None = None,
    ) -> ClaudeProcess:
        """Spawns the process; it is not yet initialised. `hosted` are MCP servers that live in this process; one that
        the session has configured itself under the same name comes first. `rules` were granted for the session."""
        if hosted:
            options = options.model_copy(update={"mcp_servers": {**hosted, **(options.mcp_servers or {})}})
        mark = new_mark()
        executable = self._executable(options)
        left_out = await asyncio.to_thread(self._left_out, options, cwd)
        command, scratch = await asyncio.to_thread(
            prepare_command, options, opening, mark, budget=budget, rules=rules, left_out=left_out
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
        self,
        process: ClaudeProcess,
        options: SessionOptions,
        hooks: Mapping[str, Any] | None = None,
        hosted: Collection[str] = (),
    ) -> None:
        """Waits until it says that it is ready. `hooks` say which moments it is to report and have decided, `hosted`
        which MCP servers it reaches through us. InvalidArgument if it does not take the options as they are."""
        wishes: dict[str, Any] = {} if hooks is None else {"hooks": hooks}
        if hosted:
            wishes["sdkMcpServers"] = list(hosted)
        if options.agents:
            wishes["agents"] = options.agents  # earlier versions do not read them from a file
        try:
            reply = await process.request("initialize", timeout=self.start_timeout, **wishes)
        except ProcessFailed:
            refusal = refused_argument(process.stderr) if process.exited.done() else None
            if refusal is not None:
                raise refusal from None
            raise
        check_agents(options, reply)
        if options.permission_mode is None and reply.get("current_permission_mode") == "auto":
            # Some versions begin like this although nobody asked for it; then a model decides instead of a person.
            await process.request("set_permission_mode", timeout=self.start_timeout, mode="default")

    async def check_servers(self, process: ClaudeProcess, options: SessionOptions) -> None:
        """Waits for the session's own MCP servers as long as Claude Code does, if a session without one of them is not
        wanted; raises what `refusals.check_servers` raises."""
        if not options.mcp_servers:
            return
        loop = asyncio.get_running_loop()
        patience = (
            _connect_seconds({**self.environment, **options.env}) if options.strict_mcp_config else _LISTED_WITHIN
        )
        deadline = loop.time() + patience
        while True:
            reply = await process.request("mcp_status", timeout=self.start_timeout)
            listed = reply.get("mcpServers")
            status = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
            if check_servers(options, status, last=loop.time() >= deadline):
                return
            await asyncio.sleep(_BETWEEN_LOOKS)


def needs_confirmation(options: SessionOptions) -> bool:
    """Whether there is something in the options that only a started Claude Code can judge."""
    return bool(options.agent or options.agents or options.output_schema or options.mcp_servers)


def _connect_seconds(environment: Mapping[str, str]) -> float:
    """How long Claude Code tries to connect to a server, and a moment for it to say so."""
    given = environment.get("MCP_TIMEOUT", "")
    milliseconds = int(given) if given.isascii() and given.isdigit() and len(given) < 10 else _CONNECT_MILLISECONDS
    return milliseconds / 1000 + 2.0


def _check_directory(field: str, path: str) -> None:
    if "\0" in path or not os.path.isdir(path):
        raise InvalidArgument(f"{field}: {path!r} is not a directory.", field=field)
    if json_text.flaw(path) is not None:
        raise InvalidArgument(
            f"{field}: the name of {path!r} is not valid Unicode; Claude Code cannot work there.", field=field
        )


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


@dataclass(frozen=True, slots=True)
class Origin:
    """Another session's transcript, which counts until there is one of its own."""

    session_id: str
    at_message: str | None = None


def opening_of(
    session_id: str, transcripts: Transcripts, origin: Origin | None = None, at_message: str | None = None
) -> ConversationStart:
    """How the next process is to begin, by what lies on disk. Blocks on it."""
    if transcripts.resumable(session_id):
        return ConversationStart(session_id, session_id, at_message, transcripts.api_ms(session_id))
    if origin is not None:
        return ConversationStart(
            session_id, origin.session_id, origin.at_message, transcripts.api_ms(origin.session_id)
        )
    return ConversationStart(session_id)


def own_directory() -> str:
    """Where this server works; InvalidArgument if that directory is gone."""
    try:
        return os.getcwd()
    except OSError:
        raise InvalidArgument(
            "cwd: the directory that this server was started in no longer exists. Name another one, or start the "
            "server elsewhere.",
            field="cwd",
        ) from None


def default_directory(settings: Settings) -> str:
    """Where sessions work that name no directory."""
    named = settings.default_cwd
    if named is not None and os.path.isabs(named):
        return os.path.abspath(named)
    return os.path.abspath(os.path.join(own_directory(), named or ""))
