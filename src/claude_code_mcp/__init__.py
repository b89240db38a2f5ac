"""Run Claude Code from any MCP client, and give every session your MCP servers through one shared hub.

The names listed in `__all__` are the public API. Each is imported on first use, so that `import claude_code_mcp` loads
nothing else: the command line answers a client before the rest of the package is there.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # what `typing` calls so, for type checkers; importing it would cost every start
if TYPE_CHECKING:
    from .core.audit.trail import LineSink
    from .core.claude.command_line import ConversationStart
    from .core.config import Settings, load_settings
    from .core.errors import ClaudeCodeError, InvalidArgument, PermissionDenied, QuestionClosed
    from .core.isolation import Connections, Enclosure, Home, IsolatedCommand, Isolation
    from .core.model.caller import Caller, ClientEnvironment
    from .core.model.events import AuditEvent, AuditKind, Event
    from .core.model.options import SessionOptions
    from .core.model.outcome import Outcome, OutcomeCode
    from .core.model.question import Answer, Closure, Question, QuestionKind, Resolution, Scope
    from .core.model.states import State
    from .core.policy.policy import Limits, Policy, Profile
    from .core.policy.rules import Decision, ToolCall, Verdict
    from .core.questions.broker import Channel
    from .core.questions.kinds import full_text
    from .core.questions.presentation import without_secrets
    from .core.service import Service
    from .core.sessions.callers.session_access import Access, SessionAccess, Share
    from .core.sessions.messages import BusyMode
    from .core.sessions.observers import Observer
    from .core.sessions.pending_turn import InterruptResult, PendingTurn
    from .core.sessions.session import Session
    from .core.sessions.stored.session_library import SessionLibrary
    from .core.sessions.workplaces import Workplaces
    from .core.settings_section import Section
    from .hub.factory import hub_configuration, make_hub
    from .hub.hub import Hub
    from .server.api_parts import ApiPart, ApiUser, Handlers
    from .server.tools.arguments import Arguments
    from .server.tools.call import Call
    from .server.tools.output import ToolOutput
    from .server.tools.tool import Tool
    from .server.transports.authenticator import AdmittedCaller, Authenticator
    from .server.transports.identity import Identity
    from .server.transports.running_calls import AccessUntil

__all__ = [
    "Access",
    "AccessUntil",
    "AdmittedCaller",
    "Answer",
    "ApiPart",
    "ApiUser",
    "Arguments",
    "AuditEvent",
    "AuditKind",
    "Authenticator",
    "BusyMode",
    "Call",
    "Caller",
    "Channel",
    "ClaudeCodeError",
    "ClientEnvironment",
    "Closure",
    "Connections",
    "ConversationStart",
    "Decision",
    "Enclosure",
    "Event",
    "Handlers",
    "Home",
    "Hub",
    "Identity",
    "InterruptResult",
    "InvalidArgument",
    "IsolatedCommand",
    "Isolation",
    "Limits",
    "LineSink",
    "Observer",
    "Outcome",
    "OutcomeCode",
    "PendingTurn",
    "PermissionDenied",
    "Policy",
    "Profile",
    "Question",
    "QuestionClosed",
    "QuestionKind",
    "Resolution",
    "Scope",
    "Section",
    "Service",
    "Session",
    "SessionAccess",
    "SessionLibrary",
    "SessionOptions",
    "Settings",
    "Share",
    "State",
    "Tool",
    "ToolCall",
    "ToolOutput",
    "Verdict",
    "Workplaces",
    "__version__",
    "full_text",
    "hub_configuration",
    "load_settings",
    "make_hub",
    "without_secrets",
]

_MODULES = {
    "core.audit.trail": ("LineSink",),
    "core.claude.command_line": ("ConversationStart",),
    "core.config": ("Settings", "load_settings"),
    "core.errors": ("ClaudeCodeError", "InvalidArgument", "PermissionDenied", "QuestionClosed"),
    "core.isolation": ("Connections", "Enclosure", "Home", "IsolatedCommand", "Isolation"),
    "core.model.caller": ("Caller", "ClientEnvironment"),
    "core.model.events": ("AuditEvent", "AuditKind", "Event"),
    "core.model.options": ("SessionOptions",),
    "core.model.outcome": ("Outcome", "OutcomeCode"),
    "core.model.question": ("Answer", "Closure", "Question", "QuestionKind", "Resolution", "Scope"),
    "core.model.states": ("State",),
    "core.policy.policy": ("Limits", "Policy", "Profile"),
    "core.policy.rules": ("Decision", "ToolCall", "Verdict"),
    "core.questions.broker": ("Channel",),
    "core.questions.kinds": ("full_text",),
    "core.questions.presentation": ("without_secrets",),
    "core.settings_section": ("Section",),
    "core.service": ("Service",),
    "core.sessions.messages": ("BusyMode",),
    "core.sessions.observers": ("Observer",),
    "core.sessions.pending_turn": ("InterruptResult", "PendingTurn"),
    "core.sessions.session": ("Session",),
    "core.sessions.callers.session_access": ("Access", "SessionAccess", "Share"),
    "core.sessions.stored.session_library": ("SessionLibrary",),
    "core.sessions.workplaces": ("Workplaces",),
    "hub.factory": ("hub_configuration", "make_hub"),
    "hub.hub": ("Hub",),
    "server.api_parts": ("ApiPart", "ApiUser", "Handlers"),
    "server.tools.arguments": ("Arguments",),
    "server.tools.call": ("Call",),
    "server.tools.output": ("ToolOutput",),
    "server.tools.tool": ("Tool",),
    "server.transports.authenticator": ("AdmittedCaller", "Authenticator"),
    "server.transports.identity": ("Identity",),
    "server.transports.running_calls": ("AccessUntil",),
}
"""The module that each public name is imported from; the same as above, for the interpreter."""


if not TYPE_CHECKING:  # a type checker would take every name for one that exists

    def __getattr__(name):
        for module, names in _MODULES.items():
            if name in names:
                from importlib import import_module  # noqa: PLC0415 - not needed by those who want the version only

                value = getattr(import_module(f".{module}", __name__), name)
                globals()[name] = value
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
