"""People admitted by a trusted proxy: a header such as `X-Forwarded-User` names them.

The header is trusted only from the proxies in the settings, by the peer's own address. From all other peers it is
removed before anything reads it, and so is a duplicate header: a proxy that appends its own to the client's proves
nothing. Names are separate from those of an issuer.
"""

import hmac
import re

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from ...core.config import Settings
from ...core.errors import InvalidArgument
from .settings import TeamSettings

_PROXY_USER = "claude_code_mcp.proxy_user"
"""In the scope of a request: the name and the groups."""
_SECRET_HEADER = b"x-proxy-secret"
_NAME = re.compile(r"[!-~]{1,128}")
_MAX_GROUPS = 200


class ProxyUsers:
    """Wraps an application. Must be outside of anything that replaces the peer's address with one reported by a
    proxy."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        # Determines the peer's address from forwarded headers as uvicorn does.
        self._trusted = ProxyHeadersMiddleware(app, [*settings.http_proxies]).trusted_hosts  # type: ignore[arg-type]
        user, groups = settings.proxy_user_header, settings.section(TeamSettings).proxy_groups_header
        self._user = user.lower().encode() if user is not None else None
        self._groups = groups.lower().encode() if groups is not None else None
        secret = settings.proxy_secret
        self._secret = secret.get_secret_value().encode() if secret is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._user is not None:
            scope = self._with_user(scope)
        await self._app(scope, receive, send)

    def _with_user(self, scope: Scope) -> Scope:
        # Before any change: the inner application sees the address that the proxy reports.
        peer = (scope.get("client") or ("",))[0]
        users = [value for name, value in scope["headers"] if name.lower() == self._user]
        groups = [value for name, value in scope["headers"] if name.lower() == self._groups]
        secrets = [value for name, value in scope["headers"] if name.lower() == _SECRET_HEADER]
        taken_out = (self._user, self._groups, _SECRET_HEADER)
        kept = [pair for pair in scope["headers"] if pair[0].lower() not in taken_out]
        found: Scope = {**scope, "headers": kept}
        if peer in self._trusted and self._is_proved(secrets) and len(users) == 1 and len(groups) <= 1:
            name = users[0].decode("latin-1")
            if _NAME.fullmatch(name):
                listed = groups[0].decode("latin-1").split(",") if groups else []
                found[_PROXY_USER] = name, tuple(group.strip() for group in listed if group.strip())[:_MAX_GROUPS]
        return found

    def _is_proved(self, secrets: list[bytes]) -> bool:
        """Whether the peer is the proxy, not another program with its address."""
        if self._secret is None:
            return True
        return len(secrets) == 1 and hmac.compare_digest(secrets[0], self._secret)


def user_of(scope: Scope) -> tuple[str, tuple[str, ...]] | None:
    """The name and groups of the person admitted by a trusted proxy; None without one."""
    return scope.get(_PROXY_USER)


def check_proxy_settings(settings: Settings) -> None:
    """Raises InvalidArgument for a header without a proxy that could be trusted."""
    if settings.proxy_user_header is not None and not settings.http_proxies:
        raise InvalidArgument(
            "CLAUDE_CODE_MCP_PROXY_USER_HEADER needs CLAUDE_CODE_MCP_TRUSTED_PROXIES: the header is trusted only from "
            "those addresses."
        )
    if "*" in settings.http_proxies and settings.proxy_user_header is not None:
        raise InvalidArgument(
            "CLAUDE_CODE_MCP_TRUSTED_PROXIES must name the proxies: with * any client could claim to be any user."
        )
