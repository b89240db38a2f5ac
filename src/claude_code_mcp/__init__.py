"""Run Claude Code from any MCP client, and give every session your MCP servers through one shared hub.

The names listed in `__all__` are the public API. Each is imported on first use, so that `import claude_code_mcp` loads
nothing else: the command line answers a client before the rest of the package is there.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # what `typing` calls so, for type checkers; importing it would cost every start
if TYPE_CHECKING:
    from .core.config import Settings, load_settings
    from .core.errors import ClaudeCodeError
    from .core.model.caller import Caller, ClientEnvironment
    from .core.model.events import Event
    from .core.model.options import SessionOptions
    from .core.model.outcome import Outcome, OutcomeCode, State
    from .core.model.question import Answer, Question, Scope
    from .core.policy.policy import Limits, Policy, Profile
    from .core.questions.broker import Channel
    from .core.service import Service
    from .core.sessions.messages import WhenBusy
    from .core.sessions.observers import Observer
    from .core.sessions.pending_turn import InterruptResult, PendingTurn
    from .core.sessions.session import Session
    from .hub.factory import hub_configuration, make_hub
    from .hub.hub import Hub

__all__ = [
    "Answer",
    "Caller",
    "Channel",
    "ClaudeCodeError",
    "ClientEnvironment",
    "Event",
    "Hub",
    "InterruptResult",
    "Limits",
    "Observer",
    "Outcome",
    "OutcomeCode",
    "PendingTurn",
    "Policy",
    "Profile",
    "Question",
    "Scope",
    "Service",
    "Session",
    "SessionOptions",
    "Settings",
    "State",
    "WhenBusy",
    "__version__",
    "hub_configuration",
    "load_settings",
    "make_hub",
]

_MODULES = {
    "core.config": ("Settings", "load_settings"),
    "core.errors": ("ClaudeCodeError",),
    "hub.hub": ("Hub",),
    "hub.factory": ("hub_configuration", "make_hub"),
    "core.model.events": ("Event",),
    "core.model.caller": ("Caller", "ClientEnvironment"),
    "core.model.options": ("SessionOptions",),
    "core.model.outcome": ("Outcome", "OutcomeCode", "State"),
    "core.model.question": ("Answer", "Question", "Scope"),
    "core.policy.policy": ("Limits", "Policy", "Profile"),
    "core.questions.broker": ("Channel",),
    "core.service": ("Service",),
    "core.sessions.pending_turn": ("InterruptResult", "PendingTurn"),
    "core.sessions.observers": ("Observer",),
    "core.sessions.messages": ("WhenBusy",),
    "core.sessions.session": ("Session",),
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
