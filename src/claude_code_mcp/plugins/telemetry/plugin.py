"""The telemetry plug-in: metrics, traces, and copies of the audit trail."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ...core.errors import InvalidArgument
from ...core.installation import extra_command
from ...plugin import HttpPort, Plugin, RunningServer

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from ...core.audit.trail import LineSink
    from ...core.config import Settings
    from ...core.sessions.observers import Observer
    from ...core.settings_section import Section
    from .metrics import Metrics


class TelemetryPlugin(Plugin):
    """Reports what sessions do to the operator's monitoring."""

    name = "telemetry"

    def __init__(self) -> None:
        self._metrics: Metrics | None = None

    def section(self) -> "type[Section]":
        from .settings import TelemetrySettings  # noqa: PLC0415 - of a plug-in only this module is light

        return TelemetrySettings

    def observers(self, server: RunningServer) -> "Iterable[Observer]":
        if self._metrics is not None:
            yield self._metrics
        from .settings import TelemetrySettings  # noqa: PLC0415

        if server.settings.section(TelemetrySettings).otel:
            try:
                from .telemetry import Telemetry  # noqa: PLC0415 - nothing of it is loaded where it is off
            except ImportError as error:
                raise InvalidArgument(
                    f"CLAUDE_CODE_MCP_OTEL needs `{extra_command('otel')}`: {error.name} is not installed."
                ) from None
            yield Telemetry(server.service.redaction.text)

    def audit_sinks(self, settings: "Settings", *, stdout: bool) -> "Sequence[LineSink]":
        from .settings import TelemetrySettings  # noqa: PLC0415

        own = settings.section(TelemetrySettings)
        if not own.audit_sinks:
            return ()
        from .audit_sinks import make_sinks  # noqa: PLC0415 - takes a while, and few have any

        token = own.audit_token.get_secret_value() if own.audit_token is not None else None
        return make_sinks(own.audit_sinks, token, stdout=stdout)

    def routes(self, server: RunningServer, port: HttpPort) -> "Iterable[BaseRoute]":
        from ...server.transports.http import metrics_route  # noqa: PLC0415

        if self._metrics is None:
            return ()
        return [metrics_route(self._metrics.render, server.service, port.address, port.callers)]

    def queries(self, server: RunningServer) -> "Mapping[str, Callable[[], Awaitable[Any]]]":
        async def figures() -> str:
            return self._metrics.render().decode() if self._metrics is not None else ""

        return {"metrics": figures}

    @asynccontextmanager
    async def running(self, server: RunningServer) -> AsyncIterator[None]:
        if server.shared is not None or server.over_http:
            from .metrics import Metrics  # noqa: PLC0415 - a server for one client does not pay for it

            self._metrics = Metrics(lambda: server.service.sessions(principal=None), server.connections)
            server.service.start_task(self._metrics.watch_the_loop(), endless=True)
        yield


PLUGIN = TelemetryPlugin
