"""Whether the tests can use bubblewrap here."""

import os
from functools import cache

from claude_code_mcp.plugins.sandbox.bubblewrap import unavailable

from . import system_packages


@cache
def missing() -> str | None:
    """Return why there can be no sandbox here, after an attempt to install bubblewrap; None if there can be one."""
    reason = unavailable(os.environ)
    if reason is None:
        return None
    return system_packages.missing("bwrap") or unavailable(os.environ)
