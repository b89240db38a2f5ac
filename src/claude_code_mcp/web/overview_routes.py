"""The routes on costs and on the MCP servers that sessions share."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from starlette.requests import Request
from starlette.responses import Response

from ..errors import InvalidArgument
from ..server.tools.base import Arguments, dump
from ..server.tools.library import cost_report
from ..service import Service
from ..store.cost_report import Grouping
from .answers import answer, arguments_of, text_of
from .guard import WebCaller

if TYPE_CHECKING:  # a server without a hub does not pay for one
    from ..hub.hub import Hub, ServerStatus

_DAY_LENGTH = len("2026-11-01")
_LONGEST_WAIT = 30.0
"""Seconds; proxies and browsers cut off what is silent for a minute."""


class SteerArguments(Arguments):
    action: Literal["reconnect", "enable", "disable", "authenticate"]
    redirect: str | None = None


async def _until_connected(hub: "Hub", server: str) -> None:
    changed = asyncio.Event()
    unwatch = hub.watch(server, lambda _: changed.set())
    try:
        async with asyncio.timeout(_LONGEST_WAIT):
            while hub.status(server)[0].state != "connected":
                await changed.wait()
                changed.clear()  # nothing is awaited between this and the look
    except TimeoutError:
        pass
    finally:
        unwatch()


class OverviewRoutes:
    """The handlers."""

    def __init__(self, service: Service, find_hub: "Callable[[], Hub | None]") -> None:
        self._service = service
        self._find_hub = find_hub

    async def costs(self, request: Request, caller: WebCaller) -> Response:
        by, since = text_of(request, "by") or "day", text_of(request, "since") or ""
        if by not in get_args(Grouping):
            raise InvalidArgument(f"by: must be one of {', '.join(get_args(Grouping))}.", field="by")
        if since and not (len(since) == _DAY_LENGTH and since.replace("-", "").isdigit()):
            raise InvalidArgument("since: must be a day such as 2026-11-01.", field="since")
        project = text_of(request, "project", 4096)
        report = await cost_report(
            self._service, caller.principal, None, cast("Grouping", by), since=since, project=project
        )
        return answer(self._service.redaction.data(dump(report)))

    async def servers(self, request: Request, _: WebCaller) -> Response:
        """The servers; with `waitFor`, once that one is connected, or after half a minute as they are then."""
        hub, awaited = self._find_hub(), text_of(request, "waitFor")
        if hub is None:
            return answer({"servers": [], "problems": []})
        if awaited is not None:
            await _until_connected(hub, awaited)
        return answer(self._reports(hub.status(), hub.problems))

    async def steer(self, request: Request, caller: WebCaller) -> Response:
        arguments, hub = await arguments_of(request, SteerArguments), self._find_hub()
        name = str(request.path_params["server"])
        if hub is None:
            raise InvalidArgument("This server has no hub.")
        with self._service.steering(caller.principal, arguments.action, name):
            if arguments.action == "authenticate":
                return await self._sign_in(hub, name, arguments.redirect)
            match arguments.action:
                case "reconnect":
                    status = await hub.reconnect(name)
                case "enable":
                    status = hub.enable(name)
                case "disable":
                    status = hub.disable(name)
        return answer(self._reports([status]))

    async def _sign_in(self, hub: "Hub", name: str, redirect: str | None) -> Response:
        """The address to sign in at, which has no secrets of others in it and is needed as it is."""
        from ..server.tools.hub_admin import sign_in  # noqa: PLC0415 - loads the hub

        report = dump(await sign_in(self._service, hub, name, redirect))
        url = report.pop("url", None)
        return answer({"servers": [], **self._service.redaction.data(report), "url": url})

    def _reports(self, statuses: "list[ServerStatus]", problems: Sequence[object] = ()) -> dict[str, Any]:
        from ..server.tools.hub_admin import server_reports  # noqa: PLC0415 - loads the hub

        report = {"servers": [], "problems": [], **dump(server_reports(statuses, problems))}
        return dict(self._service.redaction.data(report))
