"""What the bundled plug-ins give to a service. A test removes their directories in turn, so each may be missing."""

from importlib.util import find_spec
from typing import Any

_PLUGINS = "claude_code_mcp.plugins"


def service_parts() -> dict[str, Any]:
    """Arguments of `Service`."""
    parts: dict[str, Any] = {}
    if find_spec(f"{_PLUGINS}.sandbox") is not None:
        from claude_code_mcp.plugins.sandbox.homes import Homes  # noqa: PLC0415

        parts["isolation"] = Homes
    if find_spec(f"{_PLUGINS}.worktrees") is not None:
        from claude_code_mcp.plugins.worktrees.worktrees import Worktrees  # noqa: PLC0415

        parts["workplaces"] = Worktrees()
    return parts
