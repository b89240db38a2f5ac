"""Run Claude Code from any MCP client, and give every session your MCP servers through one shared hub.

The names listed in `__all__` are the public API. Each is imported on first use, so that `import claude_code_mcp` loads
nothing else: the command line answers a client before the rest of the package is there.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # what `typing` calls so, for type checkers; importing it would cost every start
if TYPE_CHECKING:
    from .config import Settings, load_settings
    from .errors import ClaudeCodeError
    from .hub.hub import Hub
    from .hub_factory import hub_configuration, make_hub
    from .model.events import Event
    from .model.options import Caller, ClientEnvironment, SessionOptions
    from .model.outcome import Outcome, OutcomeCode, State
    from .model.question import Answer, Question, Scope
    from .policy.policy import Limits, Policy, Profile
    from .questions.broker import Channel
    from .service import Service
    from .sessions.background import Observer
    from .sessions.message_acceptance import InterruptResult, PendingTurn
    from .sessions.messages import WhenBusy
    from .sessions.session import Session

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
    "config": ("Settings", "load_settings"),
    "errors": ("ClaudeCodeError",),
    "hub.hub": ("Hub",),
    "hub_factory": ("hub_configuration", "make_hub"),
    "model.events": ("Event",),
    "model.options": ("Caller", "ClientEnvironment", "SessionOptions"),
    "model.outcome": ("Outcome", "OutcomeCode", "State"),
    "model.question": ("Answer", "Question", "Scope"),
    "policy.policy": ("Limits", "Policy", "Profile"),
    "questions.broker": ("Channel",),
    "service": ("Service",),
    "sessions.message_acceptance": ("InterruptResult", "PendingTurn"),
    "sessions.background": ("Observer",),
    "sessions.messages": ("WhenBusy",),
    "sessions.session": ("Session",),
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
