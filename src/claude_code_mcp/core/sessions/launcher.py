"""From the options of a session to a process that is ready.

`Launcher` checks the options as far as that is possible without a process, spawns the process, initialises it and
checks what only a running Claude Code can tell. Beside it: at which point of which conversation a process begins.
"""

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import json_text
from ..claude.command_line import CommandLine, ConversationStart, build_command, check_inline, write_files
from ..claude.executable import check_values, find_executable, start_inputs
from ..claude.option_checks import check_agents, check_servers, refused_argument
from ..claude.process import ClaudeProcess, ProcessListener
from ..claude.user_config import own_registrations, process_with
from ..errors import InvalidArgument, ProcessFailed, SessionBusy
from ..isolation import Home
from ..model.caller import LOCAL
from ..model.options import BYPASS, SessionOptions
from ..model.worktree import Worktree
from ..private_files import directory_at
from ..processes.environment import build_environment
from ..processes.leftovers import end_stale, is_stale, new_mark, scratch_path
from ..processes.limits import ChildOptions
from ..transcripts.transcripts import Transcripts
from .session_traces import is_traced, trace_variables

_CONNECT_MILLISECONDS = 30_000
"""How long Claude Code tries to connect to an MCP server unless MCP_TIMEOUT says otherwise."""
_CONNECT_MARGIN = 2.0
"""Seconds that it is given on top, to report the failure."""
_LONGEST_ARGUMENT = 128 << 10
"""Bytes of one argument or variable that Linux takes; others take more."""
_LISTED_WITHIN = 2.0
"""Seconds in which a server must be listed, where a session may go on without it."""
_STATUS_INTERVAL = 0.1
_MOST_DEBUG_FILES = 1000
_OWN_TELEMETRY = "CLAUDE_CODE_ENABLE_TELEMETRY"
"""The variable with which Claude Code sends traces of its own."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything that a process is started with, except for the conversation that it begins or goes on with."""

    options: SessionOptions
    cwd: str
    owner: str
    environment: str
    """What is significant in the environment of the client, see `Launcher.environment_key`."""
    budget: float | None = None
    """What the process may spend."""
    bridged: Mapping[str, Mapping[str, Any]] | None = None
    """The configuration of MCP servers that it reaches over the control channel; a server that the session has
    configured itself under the same name takes precedence."""
    rules: Mapping[str, Sequence[str]] | None = None
    """Permission rules that were granted for the session."""
    hooks: Mapping[str, Any] | None = None
    """The moments that it is to report and have decided."""
    variables: Mapping[str, str] | None = None
    """Set in its environment whatever the session's own and settings files say."""
    mirrored: bool = False
    """Whether it reports what it writes to its transcripts."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """Starts Claude Code processes in one home."""

    home: Home
    environment_key: str
    """Equal for environments in which sessions behave the same: see `environment_key` of `client_environments.py`."""
    executable: str | None
    start_timeout: float
    nested: Mapping[str, str] = field(default_factory=dict)
    """Variables for servers of ours inside a session of the local user; empty where there may be none."""
    own_addresses: Sequence[str] = ()
    """Where this very server is reached over HTTP. Read at every start of a process."""

    @property
    def environment(self) -> Mapping[str, str]:
        return self.home.environment

    @property
    def config_dir(self) -> str:
        """Where Claude Code keeps its files."""
        return self.home.config_dir

    # -- before the start -------------------------------------------------------------------------------------

    async def check(self, options: SessionOptions, cwd: str) -> None:
        """Raises what would make a start fail for certain, before anything is spawned."""
        executable = self._executable(options)
        _check_worktree(options)
        _check_directory("cwd", cwd)
        for directory in options.additional_directories:
            _check_directory("additional_directories", os.path.join(cwd, directory))
        check_inline(options)
        for name, value in options.env.items():
            if not name or "=" in name or "\0" in name + value:
                raise InvalidArgument(f"env: {name!r} cannot be set in an environment.", field="env")
            if len(os.fsencode(f"{name}={value}")) >= _LONGEST_ARGUMENT:
                raise InvalidArgument(f"env: {name[:100]!r} is too long for an environment.", field="env")
        _check_root(options, {**self.environment, **options.env})
        if self.home.enclosure is not None:
            await asyncio.to_thread(self.home.enclosure.check, options, cwd)
        await check_values(options, executable, self.environment)

    def end_stray(self, session_id: str) -> None:
        """Ends a process that a killed server has left with this session, if it is not gone by itself yet."""
        pid = process_with(session_id, self.config_dir)
        if pid is not None:
            end_stale(pid)

    def check_alone(self, session_id: str) -> None:
        """SessionBusy if a Claude Code process has the session open, other than one that `end_stray` ends: a process of
        a killed server may register itself while it is being ended. Reads a few small files.

        A process that ends between the two looks shows no mark any more, so that it seems to be somebody else's; one
        that is still there after them was there all the time, and its mark could be read."""
        pid = process_with(session_id, self.config_dir)
        if pid is not None and not is_stale(pid) and process_with(session_id, self.config_dir) == pid:
            raise SessionBusy(
                f"Session {session_id} is open in another Claude Code process ({pid}). Close it there first, or fork "
                "the session.",
                session_id=session_id,
                pid=pid,
            )

    def _executable(self, options: SessionOptions) -> str:
        if options.executable:
            return find_executable(options.executable, self.environment, named_by="executable")
        return find_executable(self.executable, self.environment)

    # -- the start --------------------------------------------------------------------------------------------

    async def start(self, listener: ProcessListener, launch: Launch, start: ConversationStart) -> ClaudeProcess:
        """Spawns the process; it is not yet initialised."""
        mark, options = new_mark(), self._final_options(launch)
        if options.debug_file is not None:
            debug_file = await asyncio.to_thread(_new_file, os.path.join(launch.cwd, options.debug_file))
            options = options.model_copy(update={"debug_file": debug_file})
        command, scratch = await asyncio.to_thread(self._prepare, launch, options, start, mark)
        # The trace is no part of `key`: a spare process has none, and can be taken all the same.
        variables = {**trace_variables(start.session_id), **self._variables(launch, command)}
        environment = build_environment(self.environment, variables, mark)
        argv = self._argv(options, command)
        if self.home.enclosure is None:
            return await ClaudeProcess.start(
                listener,
                argv,
                cwd=launch.cwd,
                environment=environment,
                mark=mark,
                session_id=start.session_id,
                scratch=scratch,
                options=ChildOptions(limits=self.home.limits),
            )
        # Even where the command has no files: the sockets that lead out of the sandbox are made there.
        scratch = scratch_path(mark)
        entered = self.home.enclosure.entered(
            argv, options, launch.cwd, command.files, scratch, environment, conversation=start
        )
        async with entered as (isolated, ways):
            process = await ClaudeProcess.start(
                listener,
                isolated.argv,
                cwd="/",  # the sandbox goes to its own directory by itself
                environment=isolated.environment,
                mark=mark,
                session_id=start.session_id,
                scratch=scratch,
                options=ChildOptions(isolated.descriptors, limits=self.home.limits, removal=isolated.removal),
            )
        process.traffic = ways.traffic
        # They end with the process, however that ends.
        process.exited.add_done_callback(lambda _: ways.close())
        return process

    def _final_options(self, launch: Launch) -> SessionOptions:
        """The options with the bridged servers, and as a sandbox needs them."""
        options = launch.options
        if launch.bridged:
            options = options.model_copy(update={"mcp_servers": {**launch.bridged, **(options.mcp_servers or {})}})
        if self.home.sandbox is not None and options.sandbox is not None:
            # Claude Code's own sandbox cannot mount a /proc of its own inside of another one.
            options = options.model_copy(update={"sandbox": {**options.sandbox, "enableWeakerNestedSandbox": True}})
        return options

    def _prepare(
        self, launch: Launch, options: SessionOptions, start: ConversationStart, mark: str
    ) -> tuple[CommandLine, Path | None]:
        """The command with its files, and their directory, in a home that is in place. ProcessFailed if that cannot be
        had. Blocks on the disk."""
        try:
            self.home.make()
            scratch = scratch_path(mark)
            command = build_command(options, start, scratch, **self._more(launch, options))
            return command, write_files(command, scratch)
        except OSError as error:
            raise ProcessFailed(f"Claude Code could not be started: {error}") from None

    def _more(self, launch: Launch, options: SessionOptions) -> dict[str, Any]:
        """What a command is made of beside the options."""
        left_out = () if self._nested(launch) else self._own_servers(options, launch.cwd)
        return {
            "budget": launch.budget,
            "rules": launch.rules,
            "left_out": left_out,
            "alone": self.home.own,
            "variables": launch.variables,
            "mirrored": launch.mirrored,
        }

    def _argv(self, options: SessionOptions, command: CommandLine) -> list[str]:
        return [self._executable(options), *command.arguments]

    def _variables(self, launch: Launch, command: CommandLine) -> dict[str, str]:
        return {**self._nested(launch), **launch.options.env, **command.variables}

    async def key(self, launch: Launch) -> str | None:
        """A text that is equal for two launches of new conversations if the processes would be equal: the same
        arguments, files, environment and directory, for the same caller, and nothing changed of what Claude Code reads
        at its start. None where that cannot be said."""
        return await asyncio.to_thread(self._key, launch)

    def _key(self, launch: Launch) -> str | None:
        options = self._final_options(launch)
        if options.debug or options.debug_file is not None:
            return None  # it writes a file before anybody has used it
        command = build_command(options, ConversationStart(""), Path(), **self._more(launch, options))
        argv, variables = self._argv(options, command), self._variables(launch, command)
        if is_traced() and {**self.environment, **variables}.get(_OWN_TELEMETRY):
            return None  # it reads at its start which trace it is in, and nobody's turn has begun
        read = start_inputs({**self.environment, **variables}, launch.cwd, options.additional_directories, argv[0])
        if read is None:
            return None
        files = {str(path): content for path, content in command.files.items()}
        started_with = [argv, files, launch.environment, variables, launch.cwd, launch.owner, launch.hooks]
        home = [self.config_dir, self.home.enclosure is not None]
        parts = [*started_with, home, read]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()

    def _nested(self, launch: Launch) -> Mapping[str, str]:
        """A server inside a session takes whoever uses it for the local user, so only that user's sessions have one."""
        return self.nested if launch.owner == LOCAL else {}

    def _own_servers(self, options: SessionOptions, cwd: str) -> Sequence[Mapping[str, Any]]:
        """The registrations of this very server that the session must not start, or call back to."""
        if options.strict_mcp_config:
            return ()
        commands = own_registrations({**self.environment, **options.env}, cwd)
        addresses = [{"serverUrl": address} for address in self.own_addresses]
        return [*({"serverCommand": list(command)} for command in commands), *addresses]

    async def initialize(self, process: ClaudeProcess, launch: Launch) -> None:
        """Waits until the process reports that it is ready; InvalidArgument if it does not take the options."""
        options = launch.options
        fields: dict[str, Any] = {} if launch.hooks is None else {"hooks": launch.hooks}
        if launch.bridged:
            fields["sdkMcpServers"] = list(launch.bridged)
        if options.agents:
            fields["agents"] = options.agents  # earlier versions do not read them from a file
        try:
            reply = await process.request("initialize", timeout=self.start_timeout, **fields)
        except ProcessFailed:
            # Only of one that has ended: before that, stderr may lack the line that says why.
            refusal = refused_argument(process.stderr) if process.exited.done() else None
            if refusal is not None:
                raise refusal from None
            raise
        check_agents(options, reply)
        if options.permission_mode is None and reply.get("current_permission_mode") == "auto":
            # Some versions begin like this although nobody asked for it; then a model decides instead of a person.
            await process.request("set_permission_mode", timeout=self.start_timeout, mode="default")

    async def check_servers(self, process: ClaudeProcess, options: SessionOptions) -> None:
        """Raises what `option_checks.check_servers` finds wrong with the session's own MCP servers.

        With `strict_mcp_config` a session without one of them is not wanted: then it waits for the connections as long
        as Claude Code does.
        """
        if not options.mcp_servers:
            return
        loop = asyncio.get_running_loop()
        environment = {**self.environment, **options.env}
        timeout = _connect_timeout(environment) if options.strict_mcp_config else _LISTED_WITHIN
        deadline = loop.time() + timeout
        while True:
            reply = await process.request("mcp_status", timeout=self.start_timeout)
            listed = reply.get("mcpServers")
            status = [server for server in listed if isinstance(server, Mapping)] if isinstance(listed, list) else []
            if check_servers(options, status, last=loop.time() >= deadline):
                return
            await asyncio.sleep(_STATUS_INTERVAL)


def needs_confirmation(options: SessionOptions) -> bool:
    """Whether there is something in the options that only a started Claude Code can judge."""
    return bool(options.agent or options.agents or options.output_schema or options.mcp_servers)


def check_debug_file(options: SessionOptions, cwd: str) -> None:
    """InvalidArgument if a new session would write its debug log to a file that exists."""
    if options.debug_file is not None and os.path.lexists(os.path.join(cwd, options.debug_file)):
        raise InvalidArgument(f"debug_file: {options.debug_file!r} exists; name a new file.", field="debug_file")


def _new_file(path: str) -> str:
    """Makes a file for the debug log of one process, which Claude Code would append to whatever is there: the path, or
    where that exists `path.2` and so on. InvalidArgument if it cannot be made."""
    try:
        with directory_at(os.path.dirname(path)) as directory:
            for number in range(1, _MOST_DEBUG_FILES):
                name = path if number == 1 else f"{path}.{number}"
                with contextlib.suppress(FileExistsError):
                    place = name if directory is None else os.path.basename(name)
                    # Exclusive: what is there, a link too, is never written to.
                    os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory))
                    return name
    except OSError as error:
        raise InvalidArgument(f"debug_file: {path!r} cannot be created: {error}.", field="debug_file") from None
    raise InvalidArgument(f"debug_file: there are too many files named {path!r}.", field="debug_file")


def _connect_timeout(environment: Mapping[str, str]) -> float:
    value = environment.get("MCP_TIMEOUT", "")
    milliseconds = int(value) if value.isascii() and value.isdigit() and len(value) < 10 else _CONNECT_MILLISECONDS
    return milliseconds / 1000 + _CONNECT_MARGIN


def _check_worktree(options: SessionOptions) -> None:
    if isinstance(options.worktree, Worktree) and not os.path.isdir(options.worktree.path):
        raise InvalidArgument(
            f"cwd: the worktree {options.worktree.path} of this session was removed. The session is read-only now. "
            "Fork it with another cwd to continue.",
            field="cwd",
        )


def _check_directory(field: str, path: str) -> None:
    if "\0" in path or not os.path.isdir(path):
        raise InvalidArgument(f"{field}: {path!r} is not a directory.", field=field)
    if json_text.flaw(path) is not None:
        raise InvalidArgument(
            f"{field}: the name of {path!r} is not valid Unicode; Claude Code cannot work there.", field=field
        )


def _check_root(options: SessionOptions, environment: Mapping[str, str]) -> None:
    bypass = options.dangerously_skip_permissions or options.permission_mode == BYPASS
    if bypass and hasattr(os, "geteuid") and os.geteuid() == 0 and environment.get("IS_SANDBOX") != "1":
        raise InvalidArgument(
            "Claude Code refuses to bypass permissions when it runs as root. Run this server as another user, "
            "or set IS_SANDBOX=1 if the machine is a throw-away sandbox.",
            field="permission_mode",
        )


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """The session that a fork was made from; its transcript counts until the fork has one of its own."""

    session_id: str
    at_message: str | None = None


def find_conversation_start(
    session_id: str, transcripts: Transcripts, origin: ForkPoint | None = None, at_message: str | None = None
) -> ConversationStart:
    """How the next process begins: resumed from its own transcript, else from its origin's, else anew.

    Blocks on the disk.
    """
    # Its own transcript first: a fork that has one is beyond the point where it began.
    if transcripts.resumable(session_id):
        return ConversationStart(session_id, session_id, at_message, transcripts.api_ms(session_id))
    if origin is not None:
        return ConversationStart(
            session_id, origin.session_id, origin.at_message, transcripts.api_ms(origin.session_id)
        )
    return ConversationStart(session_id)
