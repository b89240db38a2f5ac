"""The parts of a running server: the service, its hub and the plug-ins, and how they start and end.

`serving.py` serves them to clients.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from . import __version__
from .core.audit.session_log import LOG_REDACTOR, SessionLog
from .core.audit.trail import Audit, RotatingJsonl, essential_path
from .core.config import Settings, secrets_of, unknown_variables
from .core.errors import ClaudeCodeError, InvalidArgument
from .core.isolation import Isolation
from .core.model.events import AuditEvent, AuditKind
from .core.policy.policy import Policy
from .core.policy_file import read_policy
from .core.service import Service
from .core.sessions.callers.expected_callers import ExpectedCallers
from .hub.provider import HubProvider
from .installed_plugins import bundled_plugins, enabled_plugins, sections_of
from .plugin import Plugin, RunningServer
from .server.tools.tool import Tool
from .server.tools.toolsets import tools_of

if TYPE_CHECKING:
    from .core.sessions.stored.replica import SessionReplica
    from .server.transports.authenticator import Authenticator

log = logging.getLogger(__name__)


@asynccontextmanager
async def running_service(
    settings: Settings,
    policy: Policy | str,
    audit_file: Path | None,
    serving_at: tuple[str, int] | None = None,
    principals: Collection[str] = (),
    spares: int = 0,
    *,
    others: bool = False,
    replica: "SessionReplica | None" = None,
    machine: str | None = None,
    shared: str | None = None,
    over_http: bool = False,
) -> "AsyncIterator[tuple[Service, HubProvider, RunningServer]]":
    """Runs the service with its hub, policy, observers and plug-ins.

    `policy` is a policy, or the name of the profile for callers that have no other profile. `others` means that callers
    besides the `principals` may call too. The audit trail records `machine`, the machine of a fleet. `shared` is the
    name of the shared server.

    At the end, the plug-ins end first, then the service, then the hubs that its sessions use. The audit trail is closed
    last, so it is complete.
    """
    plugins = await asyncio.to_thread(enabled_plugins, settings)
    # Includes disabled bundled plug-ins: the same configuration file may be used with and without them.
    sections = {*sections_of(bundled_plugins()), *sections_of(plugins)}
    settings.check_sections(sections)
    for name, meant in unknown_variables(os.environ, sections).items():
        log.warning("%s is set, but there is no such setting%s", name, f": did you mean {meant}?" if meant else "")
    LOG_REDACTOR.add(secrets_of(settings))
    rules = read_policy(settings, policy) if isinstance(policy, str) else policy
    for note in rules.notes():
        log.warning("policy: %s", note)
    isolation = only_part(plugins, "isolation", lambda plugin: plugin.isolation()) or Isolation
    open_directories = partial(isolation.writable_directories, rules, os.environ) if rules.isolates else None
    async with HubProvider(settings, serving_at, principals, open_directories) as hosting:
        service = Service(
            settings,
            policy=rules,
            redactor=LOG_REDACTOR,
            hub=hosting.shared_hub,
            callers=ExpectedCallers(principals, others, hosting.use, hosting.hubs_by_principal, hosting.open_for),
            spares=spares,
            replica=replica,
            judges=[plugin.judge for plugin in plugins if type(plugin).judge is not Plugin.judge],
            option_checks=[
                plugin.check_options for plugin in plugins if type(plugin).check_options is not Plugin.check_options
            ],
            access=only_part(plugins, "access to sessions", lambda plugin: plugin.access(settings, rules)),
            isolation=isolation,
            workplaces=only_part(plugins, "worktrees", lambda plugin: plugin.workplaces()),
        )
        if SessionLog.is_logged():
            service.observe(SessionLog(), SessionLog.EVENTS, SessionLog.ACTS)
        audit = open_audit(settings, audit_file, plugins, machine)
        if audit is not None:
            service.observe(audit)
        closing: list[Closing] = []
        started = _started(settings, policy, over_http=serving_at is not None)
        service.audit(AuditEvent(AuditKind.SERVER_STARTED, "server", details=started))
        try:
            async with service, AsyncExitStack() as started_plugins:
                hosting.connect(service)
                server = RunningServer(
                    service,
                    lambda: hosting.hub,
                    plugins,
                    hosting.connections,
                    shared,
                    over_http or serving_at is not None,
                )
                for plugin in plugins:
                    await started_plugins.enter_async_context(_started_plugin(plugin, server, closing))
                yield service, hosting, server
        finally:
            await hosting.close()
            service.audit(AuditEvent(AuditKind.SERVER_STOPPED, "server"))
            # The audit trail is closed last, when it is complete.
            for observer in [*closing, *([audit] if audit is not None else [])]:
                await asyncio.to_thread(observer.close)


@runtime_checkable
class Closing(Protocol):
    """An observer with a `close` method, which is called after the service has ended."""

    def close(self) -> None: ...


@asynccontextmanager
async def _started_plugin(plugin: Plugin, server: RunningServer, closing: list[Closing]) -> AsyncIterator[None]:
    """Runs a plug-in with its observers and channels. Appends the observers that must be closed to `closing`."""
    async with AsyncExitStack() as stack:
        with _naming(plugin):
            await stack.enter_async_context(plugin.running(server))
            for observer in plugin.observers(server):
                server.service.observe(observer)
                if isinstance(observer, Closing):
                    closing.append(observer)
            for channel in plugin.channels(server):
                server.service.broker.add_channel(channel)
                # Before `running` ends: a closed channel gets no more questions.
                stack.callback(server.service.broker.remove_channel, channel)
        yield


@contextmanager
def _naming(plugin: Plugin) -> Iterator[None]:
    """Adds the name of the plug-in to errors that it raises at the start."""
    try:
        yield
    except ClaudeCodeError:
        raise
    except Exception as error:
        log.debug("the plug-in %s failed", plugin.name, exc_info=True)
        raise InvalidArgument(
            f"The plug-in {plugin.name} cannot be started ({type(error).__name__}: {error}). Update or uninstall "
            f"it, or disable it with CLAUDE_CODE_MCP_PLUGINS_OFF={plugin.name}."
        ) from None


def _started(settings: Settings, policy: Policy | str, *, over_http: bool) -> dict[str, str | None]:
    """The fields of the audit entry for a start. A caller that no policy file names has the profile that it names
    itself, unless the settings name one."""
    fallback = policy if isinstance(policy, str) else "remote" if over_http else "shared"
    file = settings.policy_file
    return {
        "version": __version__,
        "profile": settings.profile or (fallback if file is None else None),
        "policy": None if file is None else str(file),
    }


def open_audit(
    settings: Settings, default: Path | None, plugins: Sequence[Plugin], machine: str | None = None
) -> Audit | None:
    """The audit trail of the settings, or in the file `default` if they name none; None if auditing is off.
    InvalidArgument if it cannot be written."""
    path = default if settings.audit_file is None else settings.audit_file
    if path == "off":
        return None
    sinks = [sink for plugin in plugins for sink in plugin.audit_sinks(settings, stdout=default is not None)]
    if path is None and not sinks:
        return None
    path = path or settings.state_dir / "audit.jsonl"
    path, most = Path(path), settings.audit_max_bytes
    try:
        with ExitStack() as opened:
            trail = RotatingJsonl(path, most, sinks=sinks)
            opened.callback(trail.close)
            # A pipe is not a file to rotate: its reader keeps the lines.
            essential = RotatingJsonl(essential_path(path), most) if path.is_file() else None
            opened.pop_all()
    except OSError as error:
        file = error.filename or path
        raise InvalidArgument(f"The audit trail {file} cannot be written: {error.strerror or error}.") from None
    prompts, arguments = settings.audit_prompts, settings.audit_arguments
    return Audit(trail, LOG_REDACTOR, essential=essential, prompts=prompts, arguments=arguments, machine=machine)


def tools_with(plugins: Sequence[Plugin], settings: Settings) -> Mapping[str, Tool[Any]]:
    """The tools of the chosen toolsets and of the plug-ins. InvalidArgument if two have the same name."""
    tools = dict(tools_of(settings))
    for plugin in plugins:
        with _naming(plugin):
            offered = list(plugin.tools(settings))
        for tool in offered:
            if tools.setdefault(tool.name, tool) is not tool:
                raise InvalidArgument(f"The plug-in {plugin.name} adds a tool {tool.name}, but that name is taken.")
    return tools


def authenticators(settings: Settings) -> "Sequence[Authenticator]":
    """The authenticators of all plug-ins. InvalidArgument if their settings cannot be used. Blocks on the disk."""
    found: list[Authenticator] = []
    for plugin in enabled_plugins(settings):
        with _naming(plugin):
            found += plugin.authenticators(settings)
    return found


_Part = TypeVar("_Part")
_OWN_QUERIES = ("sessions", "hub")
"""The queries that the shared server answers without any plug-in."""


def only_part(plugins: Sequence[Plugin], what: str, part_of: Callable[[Plugin], _Part | None]) -> _Part | None:
    """The part that a single plug-in provides; InvalidArgument if two provide it."""
    found = {}
    for plugin in plugins:
        with _naming(plugin):
            part = part_of(plugin)
        if part is not None:
            found[plugin.name] = part
    if len(found) > 1:
        raise InvalidArgument(f"The plug-ins {' and '.join(found)} both provide {what}. Disable one.")
    return next(iter(found.values()), None)


def queries_of(plugins: Sequence[Plugin], server: RunningServer) -> Mapping[str, Callable[[], Awaitable[Any]]]:
    """The queries that plug-ins answer on the shared server. InvalidArgument if two have the same name."""
    found: dict[str, Callable[[], Awaitable[Any]]] = {}
    for plugin in plugins:
        with _naming(plugin):
            queries = plugin.queries(server)
        for name, query in queries.items():
            if name in _OWN_QUERIES or found.setdefault(name, query) is not query:
                raise InvalidArgument(f"The plug-in {plugin.name} adds a query {name}, but that name is taken.")
    return found
