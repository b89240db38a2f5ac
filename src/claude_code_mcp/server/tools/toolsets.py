"""The tools of each toolset."""

from collections.abc import Callable, Mapping
from typing import Any

from ...core.config import Settings
from .code import code_tools
from .cost_report import SESSION_COSTS
from .manage_session import MANAGE_SESSION
from .query import query_tools
from .sessions import TOOLS as SESSION_TOOLS
from .tool import Tool

_CARE_TOOLS: Mapping[str, Tool[Any]] = {tool.name: tool for tool in (MANAGE_SESSION, SESSION_COSTS)}


def tools_of(settings: Settings) -> Mapping[str, Tool[Any]]:
    """The tools of the chosen toolsets, in a fixed order."""
    chosen = [make for toolset, make in _tool_makers(settings).items() if toolset in settings.toolsets]
    return {name: tool for make in chosen for name, tool in make().items()}


def _tool_makers(settings: Settings) -> Mapping[str, Callable[[], Mapping[str, Tool[Any]]]]:
    return {
        "sessions": lambda: SESSION_TOOLS,
        "code": lambda: code_tools(settings),
        "query": query_tools,
        "care": lambda: _CARE_TOOLS,
        "hub": _hub_tools,
        "hub-search": _search_tools,
    }


def unknown_tool(name: str, settings: Settings) -> str:
    """The error for an unknown tool; for one of an inactive toolset, how to enable it."""
    refusal = f"Unknown tool: {name[:100]}"
    found = next((toolset for toolset, make in _tool_makers(settings).items() if name in make()), None)
    if found is None or found in settings.toolsets:
        return refusal
    wanted = ",".join((*settings.toolsets, found))
    return f"{refusal}. It is in the toolset {found!r}, which is off: start the server with --toolsets {wanted}"


def offers_sessions(settings: Settings) -> bool:
    """Whether clients can use sessions at all, and not only the hub's servers."""
    return bool({"sessions", "code", "query", "care"}.intersection(settings.toolsets))


def tools_for_person() -> Mapping[str, Tool[Any]]:
    """The management tools for sessions and the hub, which the person at this machine may use regardless of the chosen
    toolsets, which are meant for models."""
    return {**_CARE_TOOLS, **_hub_tools()}


def _hub_tools() -> Mapping[str, Tool[Any]]:
    from .hub_admin import hub_tools  # noqa: PLC0415 - a server without a hub does not pay for one

    return hub_tools()


def _search_tools() -> Mapping[str, Tool[Any]]:
    from .hub_search import search_tools  # noqa: PLC0415

    return search_tools()
