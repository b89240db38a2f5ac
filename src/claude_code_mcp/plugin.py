"""Every extension point, on one page.

A plug-in is a subclass of `Plugin` that overrides the methods it needs. A package offers its plug-ins through the entry
point group `claude_code_mcp.plugins`:

    [project.entry-points."claude_code_mcp.plugins"]
    slack = "claude_code_mcp_slack:SlackPlugin"

The bundled plug-ins in `plugins/` use the same methods. Each is a directory with a module `plugin.py` that assigns its
class to `PLUGIN`. They also import modules of the core that are not part of the public API.

Installed plug-ins are enabled unless `CLAUDE_CODE_MCP_PLUGINS_OFF` names them. Each server creates one object per
plug-in; commands, checks and `authenticators` create separate objects. Every server and command that uses the
extensions of a plug-in imports its module, so the module must be light: import the rest inside the methods.

A method that raises stops the start of the server with an error that names the plug-in. While the server runs, a
failing observer or channel is logged and does not affect the others, and a failing `judge` denies the call.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from .core.audit.trail import LineSink
    from .core.config import Settings
    from .core.isolation import Isolation
    from .core.model.options import SessionOptions
    from .core.policy.policy import Policy
    from .core.policy.rules import ToolCall, Verdict
    from .core.questions.broker import Channel
    from .core.service import Service
    from .core.sessions.callers.session_access import SessionAccess
    from .core.sessions.observers import Observer
    from .core.sessions.stored.session_library import SessionLibrary
    from .core.sessions.workplaces import Workplaces
    from .core.settings_section import Section
    from .hub.hub import Hub
    from .server.api_parts import ApiPart
    from .server.tools.tool import Tool
    from .server.transports.authenticator import Authenticator
    from .server.transports.callers import Callers
    from .server.transports.http import Address
    from .server.transports.identity import Identity


@dataclass(frozen=True, slots=True)
class Command:
    """A command of `claude-code-mcp`."""

    name: str
    """One word, or two for a subcommand of one of our commands, such as `sessions share`."""
    add: str
    """`package.module:function`: the function takes the subparsers of argparse and adds the command to them. The module
    is imported when the command, or a list of commands, is requested."""


class Finding(NamedTuple):
    """The result of one check of `doctor`: its subject, the verdict, the details, and advice if it is not ok."""

    subject: str
    ok: bool
    detail: str
    fix: str = ""
    is_tried: bool = True
    """False if the check was skipped because the user did not agree to it."""


@dataclass(frozen=True, slots=True, eq=False)
class RunningServer:
    """The server that a plug-in belongs to."""

    service: "Service"
    find_hub: "Callable[[], Hub | None]"
    """The hub of clients without a separate environment; None while no MCP server is configured."""
    plugins: "Sequence[Plugin]" = ()
    """All plug-ins of the server."""
    connections: "Callable[[], Iterable[tuple[str, str]]]" = tuple
    """The connections to MCP servers, as pairs of server and state."""
    shared: str | None = None
    """The name of the shared server, which differs for each set of settings; None if this server is not shared."""
    over_http: bool = False
    """Whether the server accepts clients over HTTP."""
    _parts: "list[ApiPart]" = field(default_factory=list)

    @property
    def settings(self) -> "Settings":
        return self.service.settings

    def api_parts(self) -> "Sequence[ApiPart]":
        """The API parts of all plug-ins, created on the event loop at the first call."""
        if not self._parts:
            self._parts.extend(part for plugin in self.plugins for part in plugin.api(self))
        return self._parts


@dataclass(frozen=True, slots=True)
class HttpPort:
    """An HTTP server that is about to serve."""

    address: "Address"
    callers: "Callers"
    by_socket: bool = False
    """Whether the user of the shared server is a caller too and requests sign-in links through its socket."""


class WebPage(Protocol):
    """The sign-in page for people: a `SignInPage` with its routes."""

    @property
    def url(self) -> str: ...

    async def link_for(self, identity: "Identity", /) -> str: ...

    def check_host(self, request: "Request", /) -> str: ...

    def refused(self) -> None: ...

    def routes(self) -> "Sequence[BaseRoute]": ...


class Plugin:
    """Override the methods that you need; by default each does nothing."""

    name: ClassVar[str] = ""
    """Lower case, unique among the installed plug-ins."""

    # -- command line, settings, diagnosis --------------------------------------------------------------------

    def commands(self) -> Sequence[Command]:
        """Commands to add to the command line."""
        return ()

    def section(self) -> "type[Section] | None":
        """The settings of the plug-in, read from the environment and the configuration file like ours; read them with
        `settings.section(…)`. Variables start with `CLAUDE_CODE_MCP_`, followed by the name of the plug-in."""
        return None

    def checks(self, settings: "Settings") -> Iterable[Finding]:
        """Checks for `doctor`. A check returns a finding for everything that is wrong and does not raise."""
        return ()

    # -- sessions ---------------------------------------------------------------------------------------------

    def check_options(self, options: "SessionOptions", *, principal: str) -> None:
        """Called before a session starts and before each of its messages, with the options that the policy has
        accepted. Raise PermissionDenied to refuse them. Must not block."""

    def judge(self, call: "ToolCall", principal: str) -> "Verdict | None":
        """A verdict on a tool call by a session of this principal, or None to leave it to others. A denial always
        wins; an allowance answers the question that a person would be asked, but cannot overrule the policy. An
        exception denies the call. Must not block."""
        return None

    def access(self, settings: "Settings", policy: "Policy") -> "SessionAccess | None":
        """Who may use sessions of other owners; with None, only its owner can use a session. One plug-in may provide
        it."""
        return None

    def isolation(self) -> "type[Isolation] | None":
        """How callers and their sessions are isolated from one another and from the user of the server; None isolates
        nothing. One plug-in may provide it."""
        return None

    def workplaces(self) -> "Workplaces | None":
        """Creates the checkouts for sessions that request a separate one (`worktree`). One plug-in may provide it."""
        return None

    @asynccontextmanager
    async def deleting(self, settings: "Settings", sessions: "SessionLibrary", session_id: str) -> AsyncIterator[None]:
        """Context around the deletion of a session by the command line, which happens at the `yield`: raise before it
        to refuse the deletion, and remove the plug-in's data about the session after it."""
        yield

    # -- people -----------------------------------------------------------------------------------------------

    def channels(self, server: RunningServer) -> "Iterable[Channel]":
        """Places where questions are shown and answered. The first answer from any channel wins; a channel answers
        through `server.service.respond`, which checks and audits the answer."""
        return ()

    def observers(self, server: RunningServer) -> "Iterable[Observer]":
        """Objects that receive every event and every audited act. If one has a method `close`, it is called in a thread
        after the service has ended."""
        return ()

    def audit_sinks(self, settings: "Settings", *, stdout: bool) -> "Iterable[LineSink]":
        """Destinations for the lines of the audit trail in addition to its file. `stdout` is whether the server may
        write to standard output."""
        return ()

    # -- HTTP -------------------------------------------------------------------------------------------------

    def authenticators(self, settings: "Settings") -> "Iterable[Authenticator]":
        """Ways to authenticate over HTTP in addition to the operator's tokens. Raise InvalidArgument if the settings
        cannot be used."""
        return ()

    def page(self, server: RunningServer, port: HttpPort) -> "WebPage | None":
        """The sign-in page for this port. One plug-in may provide it. Blocks on the disk."""
        return None

    def api(self, server: RunningServer) -> "Iterable[ApiPart]":
        """Routes below `/api` for people who have signed in to the page."""
        return ()

    def routes(self, server: RunningServer, port: HttpPort) -> "Iterable[BaseRoute]":
        """Other routes. They check their callers themselves, with `port.callers`."""
        return ()

    # -- clients ----------------------------------------------------------------------------------------------

    def tools(self, settings: "Settings") -> "Iterable[Tool[Any]]":
        """MCP tools to offer in addition to ours."""
        return ()

    def queries(self, server: RunningServer) -> "Mapping[str, Callable[[], Awaitable[Any]]]":
        """Queries that commands can send to this user's shared server, by name; each returns JSON."""
        return {}

    def status(self) -> "Mapping[str, Any]":
        """Fields for the status of this user's shared server."""
        return {}

    # -- life of the server -----------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self, server: RunningServer) -> AsyncIterator[None]:
        """Context around the life of the server: open connections and start tasks before the `yield`, close them after
        it. Plug-ins start ordered by name and end in reverse order, before the service closes."""
        yield

    async def is_needed(self, idle: float) -> bool:
        """Whether the shared server must keep running although it has had no client for `idle` seconds."""
        return False

    def stop(self) -> None:
        """The server is stopping: end everything that clients wait for, such as streams."""
