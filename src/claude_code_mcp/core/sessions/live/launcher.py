"""Starts Claude Code processes for sessions.

`Launcher` checks the options as far as possible without a process, spawns the process, initializes it and checks what
only a running Claude Code can determine. `find_conversation_start` chooses the conversation that a process continues.
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

from ... import json_text
from ...claude.command_line import CommandLine, ConversationStart, build_command, check_inline, write_files
from ...claude.executable import check_values, find_executable
from ...claude.option_checks import check_agents, check_servers, refused_argument
from ...claude.process import ClaudeProcess, ProcessListener
from ...claude.start_inputs import start_inputs
from ...claude.user_config import own_registrations, process_with
from ...errors import InvalidArgument, ProcessFailed, SessionBusy
from ...isolation import Home
from ...model.caller import LOCAL
from ...model.options import BYPASS, SessionOptions
from ...model.worktree import Worktree
from ...private_files import directory_at
from ...processes.environment import build_environment
from ...processes.leftovers import end_stale, is_stale, new_mark, scratch_path
from ...processes.limits import ChildOptions
from ...transcripts.transcripts import Transcripts
from .session_traces import is_traced, trace_variables

_CONNECT_MILLISECONDS = 30_000
"""How long Claude Code tries to connect to an MCP server unless MCP_TIMEOUT says otherwise."""
_CONNECT_MARGIN = 2.0
"""Additional seconds for reporting the failure."""
_MAX_ARGUMENT = 128 << 10
"""Maximum bytes of one argument or variable on Linux; other systems allow more."""
_LISTING_TIMEOUT = 2.0
"""Seconds within which a server must be listed if the session can run without it."""
_STATUS_INTERVAL = 0.1
_MAX_DEBUG_FILES = 1000
_OWN_TELEMETRY = "CLAUDE_CODE_ENABLE_TELEMETRY"
"""The variable that enables Claude Code's own traces."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything that a process is started with, except its conversation."""

    options: SessionOptions
    cwd: str
    owner: str
    environment: str
    """The key of the client's environment, see `Launcher.environment_key`."""
    budget: float | None = None
    """What the process may spend, in dollars."""
    bridged: Mapping[str, Mapping[str, Any]] | None = None
    """The configuration of MCP servers that it reaches over the control channel; a server that the session itself
    configures under the same name takes precedence."""
    rules: Mapping[str, Sequence[str]] | None = None
    """Permission rules that were granted for the session."""
    hooks: Mapping[str, Any] | None = None
    """The hooks to register."""
    variables: Mapping[str, str] | None = None
    """Environment variables that override the session's own and those of settings files."""
    mirrored: bool = False
    """Whether it mirrors its transcript entries to us."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """Starts Claude Code processes in one home."""

    home: Home
    environment_key: str
    """Equal for environments in which sessions behave the same: see `environment_key` of `client_environments.py`."""
    executable: str | None
    start_timeout: float
    nested: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for instances of this server inside sessions of the local user; empty if not allowed."""
    own_addresses: Sequence[str] = ()
    """The addresses of this server over HTTP. Read at every start of a process."""

    @property
    def environment(self) -> Mapping[str, str]:
        return self.home.environment

    @property
    def config_dir(self) -> str:
        """Claude Code's configuration directory."""
        return self.home.config_dir

    # -- before the start -------------------------------------------------------------------------------------

    async def check(self, options: SessionOptions, cwd: str) -> None:
        """Raise the errors that would make a start fail, as far as they can be found without spawning a process."""
        executable = self._executable(options)
        _check_working_directory(options, cwd)
        check_inline(options)
        for name, value in options.env.items():
            if not name or "=" in name or "\0" in name + value:
                raise InvalidArgument(f"env: {name!r} cannot be set in an environment.", field="env")
            if len(os.fsencode(f"{name}={value}")) >= _MAX_ARGUMENT:
                raise InvalidArgument(f"env: {name[:100]!r} is too long for an environment.", field="env")
        bypass = options.dangerously_skip_permissions or options.permission_mode == BYPASS
        in_sandbox = {**self.environment, **options.env}.get("IS_SANDBOX") == "1"
        if bypass and hasattr(os, "geteuid") and os.geteuid() == 0 and not in_sandbox:
            raise InvalidArgument(
                "Claude Code refuses to bypass permissions when it runs as root. Run this server as another user, "
                "or set IS_SANDBOX=1 if the machine is a disposable sandbox.",
                field="permission_mode",
            )
        if self.home.enclosure is not None:
            await asyncio.to_thread(self.home.enclosure.check, options, cwd)
        await check_values(options, executable, self.environment)

    def end_leftover_process(self, session_id: str) -> None:
        """End a process of this session that a killed server left behind, if it still runs."""
        pid = process_with(session_id, self.config_dir)
        if pid is not None:
            end_stale(pid)

    def check_alone(self, session_id: str) -> None:
        """Raise SessionBusy if a Claude Code process has the session open, except one that `end_leftover_process` ends:
        a process of a killed server may register itself while it is being ended. Reads a few small files.

        The process is looked up twice because one that exits during the check no longer shows its mark and would seem
        foreign. If it still exists afterward, its mark could be read."""
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

    async def spawn(self, listener: ProcessListener, launch: Launch, conversation: ConversationStart) -> ClaudeProcess:
        """Spawn a process; it is not initialized yet. ProcessFailed if that fails."""
        mark, options = new_mark(), self._final_options(launch)
        if options.debug_file is not None:
            debug_file = await asyncio.to_thread(_new_file, os.path.join(launch.cwd, options.debug_file))
            options = options.model_copy(update={"debug_file": debug_file})
        scratch = scratch_path(mark)

        def prepare() -> tuple[CommandLine, list[str], dict[str, str], Path | None]:
            """Make the home and write the files of the command; `Path` is their directory, if there are any."""
            try:
                self.home.make()
                command, argv, variables = self._command(launch, options, conversation, scratch)
                return command, argv, variables, write_files(command, scratch)
            except OSError as error:
                raise ProcessFailed(f"Claude Code could not be started: {error}") from None

        command, argv, variables, written = await asyncio.to_thread(prepare)
        # The trace is not part of `key`: a spare process has none and can be used anyway.
        traced = {**trace_variables(conversation.session_id), **variables}
        environment = build_environment(self.environment, traced, mark)
        if self.home.enclosure is None:
            return await ClaudeProcess.start(
                listener,
                argv,
                cwd=launch.cwd,
                environment=environment,
                mark=mark,
                session_id=conversation.session_id,
                scratch=written,
                options=ChildOptions(limits=self.home.limits),
            )
        # With `scratch` even if the command has no files: the sockets that lead out of the sandbox are created there.
        entered = self.home.enclosure.entered(
            argv, options, launch.cwd, command.files, scratch, environment, conversation=conversation
        )
        async with entered as (isolated, ways):
            process = await ClaudeProcess.start(
                listener,
                isolated.argv,
                cwd="/",  # the sandbox changes to its own directory
                environment=isolated.environment,
                mark=mark,
                session_id=conversation.session_id,
                scratch=scratch,
                options=ChildOptions(isolated.descriptors, limits=self.home.limits, removal=isolated.removal),
            )
        process.traffic = ways.traffic
        # They are closed when the process ends, in any way.
        process.exited.add_done_callback(lambda _: ways.close())
        return process

    def _final_options(self, launch: Launch) -> SessionOptions:
        """The options with the bridged servers and the changes that a sandbox needs."""
        options = launch.options
        if launch.bridged:
            options = options.model_copy(update={"mcp_servers": {**launch.bridged, **(options.mcp_servers or {})}})
        if self.home.sandbox is not None and options.sandbox is not None:
            # Claude Code's own sandbox cannot mount its own /proc inside another sandbox.
            options = options.model_copy(update={"sandbox": {**options.sandbox, "enableWeakerNestedSandbox": True}})
        return options

    def _command(
        self, launch: Launch, options: SessionOptions, conversation: ConversationStart, scratch: Path
    ) -> tuple[CommandLine, list[str], dict[str, str]]:
        """The command with its files, which belong in `scratch`; the program with its arguments; and the variables that
        the process gets in addition to the home's. Reads the user's configuration."""
        # A server inside a session treats its client as the local user, so only that user's sessions have one.
        nested = self.nested if launch.owner == LOCAL else {}
        # The registrations of this server itself, which the session must neither start nor call.
        left_out: list[Mapping[str, Any]] = []
        if not options.strict_mcp_config and not nested:
            commands = own_registrations({**self.environment, **options.env}, launch.cwd)
            left_out = [{"serverCommand": list(command)} for command in commands]
            left_out += [{"serverUrl": address} for address in self.own_addresses]
        command = build_command(
            options,
            conversation,
            scratch,
            budget=launch.budget,
            rules=launch.rules,
            left_out=left_out,
            alone=self.home.own,
            variables=launch.variables,
            mirrored=launch.mirrored,
        )
        variables = {**nested, **launch.options.env, **command.variables}
        return command, [self._executable(options), *command.arguments], variables

    def key(self, launch: Launch) -> str | None:
        """A key that is equal for two launches of new conversations if the processes would be equal: same arguments,
        files, environment, directory and caller, and no change in what Claude Code reads when it starts. None if that
        is uncertain. Blocks on the disk."""
        options = self._final_options(launch)
        if options.debug or options.debug_file is not None:
            return None  # the process writes a file before a session uses it
        command, argv, variables = self._command(launch, options, ConversationStart(""), Path())
        if is_traced() and {**self.environment, **variables}.get(_OWN_TELEMETRY):
            return None  # the process reads its trace when it starts, before there is a turn
        read = start_inputs({**self.environment, **variables}, launch.cwd, options.additional_directories, argv[0])
        if read is None:
            return None
        files = {str(path): content for path, content in command.files.items()}
        started_with = [argv, files, launch.environment, variables, launch.cwd, launch.owner, launch.hooks]
        home = [self.config_dir, self.home.enclosure is not None]
        parts = [*started_with, home, read]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()

    async def initialize(self, process: ClaudeProcess, launch: Launch) -> None:
        """Wait until the process reports that it is ready; InvalidArgument if it rejects the options."""
        options = launch.options
        fields: dict[str, Any] = {} if launch.hooks is None else {"hooks": launch.hooks}
        if launch.bridged:
            fields["sdkMcpServers"] = list(launch.bridged)
        if options.agents:
            fields["agents"] = options.agents  # earlier versions do not read them from a file
        try:
            reply = await process.request("initialize", timeout=self.start_timeout, **fields)
        except ProcessFailed:
            # Only if it has exited: before that, stderr may lack the line with the reason.
            refusal = refused_argument(process.stderr) if process.exited.done() else None
            if refusal is not None:
                raise refusal from None
            raise
        check_agents(options, reply)
        if options.permission_mode is None and reply.get("current_permission_mode") == "auto":
            # Some versions start in this mode by default; then a model decides instead of a person.
            await process.request("set_permission_mode", timeout=self.start_timeout, mode="default")

    async def check_servers(self, process: ClaudeProcess, options: SessionOptions) -> None:
        """Raise the problems that `option_checks.check_servers` finds in the session's own MCP servers.

        With `strict_mcp_config` a session needs all of them, so this waits for the connections as long as Claude Code
        does.
        """
        if not options.mcp_servers:
            return
        loop = asyncio.get_running_loop()
        timeout = _LISTING_TIMEOUT
        if options.strict_mcp_config:
            value = {**self.environment, **options.env}.get("MCP_TIMEOUT", "")
            is_valid = value.isascii() and value.isdigit() and len(value) < 10
            timeout = (int(value) if is_valid else _CONNECT_MILLISECONDS) / 1000 + _CONNECT_MARGIN
        deadline = loop.time() + timeout
        while True:
            reply = await process.request("mcp_status", timeout=self.start_timeout)
            listed = reply.get("mcpServers")
            status = [server for server in listed if isinstance(server, Mapping)] if isinstance(listed, list) else []
            if check_servers(options, status, last=loop.time() >= deadline):
                return
            await asyncio.sleep(_STATUS_INTERVAL)


def needs_confirmation(options: SessionOptions) -> bool:
    """Whether the options contain something that only a running Claude Code can check."""
    return bool(options.agent or options.agents or options.output_schema or options.mcp_servers)


def check_debug_file(options: SessionOptions, cwd: str) -> None:
    """Raise InvalidArgument if a new session would write its debug log to an existing file."""
    if options.debug_file is not None and os.path.lexists(os.path.join(cwd, options.debug_file)):
        raise InvalidArgument(f"debug_file: {options.debug_file!r} exists; name a new file.", field="debug_file")


def _new_file(path: str) -> str:
    """Create a file for the debug log of one process, because Claude Code appends to an existing file: the path, or if
    it exists `path.2` and so on. InvalidArgument if it cannot be created."""
    try:
        with directory_at(os.path.dirname(path)) as directory:
            for number in range(1, _MAX_DEBUG_FILES):
                name = path if number == 1 else f"{path}.{number}"
                with contextlib.suppress(FileExistsError):
                    place = name if directory is None else os.path.basename(name)
                    # Exclusive: an existing file or link is never written to.
                    os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory))
                    return name
    except OSError as error:
        raise InvalidArgument(f"debug_file: {path!r} cannot be created: {error}.", field="debug_file") from None
    raise InvalidArgument(f"debug_file: there are too many files named {path!r}.", field="debug_file")


def _check_working_directory(options: SessionOptions, cwd: str) -> None:
    if isinstance(options.worktree, Worktree) and not os.path.isdir(options.worktree.path):
        raise InvalidArgument(
            f"cwd: the worktree {options.worktree.path} of this session was removed. The session is read-only now. "
            "Fork it with another cwd to continue.",
            field="cwd",
        )
    _check_directory("cwd", cwd)
    for directory in options.additional_directories:
        _check_directory("additional_directories", os.path.join(cwd, directory))


def _check_directory(field: str, path: str) -> None:
    if "\0" in path or not os.path.isdir(path):
        raise InvalidArgument(f"{field}: {path!r} is not a directory.", field=field)
    if json_text.flaw(path) is not None:
        raise InvalidArgument(
            f"{field}: the name of {path!r} is not valid Unicode; Claude Code cannot work there.", field=field
        )


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """The session that a fork was made from; its transcript is used until the fork has its own."""

    session_id: str
    at_message: str | None = None


def find_conversation_start(
    session_id: str, transcripts: Transcripts, origin: ForkPoint | None = None, at_message: str | None = None
) -> ConversationStart:
    """The start of a session's next process: from its own transcript, else from its origin's, else a new conversation.

    Blocks on the disk.
    """
    # Its own transcript first: a fork that has one has moved past the fork point.
    if transcripts.resumable(session_id):
        return ConversationStart(session_id, session_id, at_message, transcripts.api_ms(session_id))
    if origin is not None:
        return ConversationStart(
            session_id, origin.session_id, origin.at_message, transcripts.api_ms(origin.session_id)
        )
    return ConversationStart(session_id)
