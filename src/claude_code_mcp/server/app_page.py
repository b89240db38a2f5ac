"""The MCP App: the web console reduced to one session, for clients that show apps next to results.

`app.html` is built by `make web`. It connects only to its host client, through which it calls `claude_get_status` and
`claude_respond`. Clients that show no apps ignore it.
"""

from functools import cache
from importlib.resources import files
from typing import Any

import mcp_types as types

EXTENSION = "io.modelcontextprotocol/ui"
URI = "ui://session"
_MIME_TYPE = "text/html;profile=mcp-app"
TOOL_META: dict[str, Any] = {"ui": {"resourceUri": URI}, "ui/resourceUri": URI}
"""The `_meta` of tools whose results the app shows. Some clients know only the flat key."""


def contents() -> types.ReadResourceResult:
    """The app as a resource. Its policy declares no address, because it loads nothing and connects to nothing."""
    page = types.TextResourceContents(
        uri=URI, mime_type=_MIME_TYPE, text=_page(), _meta={"ui": {"prefersBorder": True}}
    )
    return types.ReadResourceResult(contents=[page])


@cache
def _page() -> str:
    return files("claude_code_mcp.server").joinpath("app.html").read_text(encoding="utf-8")
