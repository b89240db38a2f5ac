"""Who somebody is by the word of a proxy that has let them in: a header such as `X-Forwarded-User`.

Believed of the proxies of the settings alone, by the address of the peer itself. From everybody else the header is
taken out before anything looks at it, and so is one that comes twice: a proxy that adds its own behind that of a client
says nothing. The name is a person's own within this server, apart from those that an issuer gives.
"""

import re
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from ...config import Settings
from ...errors import InvalidArgument

KEY = "claude_code_mcp.proxy_user"
"""In the scope of a request: the name, and the groups."""
_NAME = re.compile(r"[!-~]{1,128}")
_MOST_GROUPS = 200


class ProxyUsers:
    """Wraps an application; what it believes of where a request is from is as uvicorn does it."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        inner = ProxyHeadersMiddleware(app, [*settings.http_proxies])  # type: ignore[arg-type]
        self._app: Any = inner
        self._trusted = inner.trusted_hosts
        user, groups = settings.proxy_user_header, settings.proxy_groups_header
        self._user = user.lower().encode() if user is not None else None
        self._groups = groups.lower().encode() if groups is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._user is not None:
            scope = self._with_user(scope)
        await self._app(scope, receive, send)

    def _with_user(self, scope: Scope) -> Scope:
        # Before anything is changed: inside, the address is the one that the proxy has told.
        peer = (scope.get("client") or ("",))[0]
        users = [value for name, value in scope["headers"] if name.lower() == self._user]
        groups = [value for name, value in scope["headers"] if name.lower() == self._groups]
        kept = [pair for pair in scope["headers"] if pair[0].lower() not in (self._user, self._groups)]
        found: Scope = {**scope, "headers": kept}
        if peer in self._trusted and len(users) == 1 and len(groups) <= 1:
            name = users[0].decode("latin-1")
            if _NAME.fullmatch(name):
                listed = groups[0].decode("latin-1").split(",") if groups else []
                found[KEY] = name, tuple(group.strip() for group in listed if group.strip())[:_MOST_GROUPS]
        return found


def user_of(scope: Scope) -> tuple[str, tuple[str, ...]] | None:
    """The name and the groups of whom a trusted proxy has let in; None without one."""
    return scope.get(KEY)


def check_proxy_settings(settings: Settings) -> None:
    """InvalidArgument for a header that nobody could be believed about."""
    if settings.proxy_user_header is not None and not settings.http_proxies:
        raise InvalidArgument(
            "CLAUDE_CODE_MCP_PROXY_USER_HEADER needs CLAUDE_CODE_MCP_TRUSTED_PROXIES: from others it is not believed."
        )
    if "*" in settings.http_proxies and settings.proxy_user_header is not None:
        raise InvalidArgument(
            "CLAUDE_CODE_MCP_TRUSTED_PROXIES must name the proxies: with * anybody could say who they are."
        )
