"""`/metrics`: figures for whoever shows the right token."""

from collections.abc import Callable, Mapping

from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ..config import Settings
from .tokens import StaticTokens

_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics_route(
    render: Callable[[], bytes],
    settings: Settings,
    tokens: Mapping[str, str],
    security: TransportSecuritySettings,
    refused: Callable[[], None],
) -> Route:
    """Its own token if there is one, else that of any caller. No token at all is asked where callers need none."""
    own = settings.metrics_token
    known = StaticTokens({own.get_secret_value(): "metrics"} if own is not None else tokens, "", refused)
    protected = bool(own is not None or tokens)
    origin_check = TransportSecurityMiddleware(security)

    async def metrics(request: Request) -> Response:
        unwelcome = await origin_check.validate_request(request)
        if unwelcome is not None:
            return unwelcome
        if protected and await known.verify_token(_bearer(request)) is None:
            return PlainTextResponse("Unauthorized", 401, {"WWW-Authenticate": "Bearer"})
        return Response(render(), media_type=_TYPE)

    return Route("/metrics", metrics)


def _bearer(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.casefold() == "bearer" else ""
