"""What the server logs, sent over OTLP: the same lines as on standard error, with secrets taken out.

Imports the SDK of OpenTelemetry, as `telemetry.py` does, and nobody else imports it. A line that is logged while a
request is answered has its trace. Sending never blocks whoever logs: what cannot be sent in time is dropped.
"""

import logging
from collections.abc import Callable

from opentelemetry._logs import SeverityNumber
from opentelemetry.context import get_current
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource

from .. import __version__
from ..model.text import cut

_PACKAGE = __name__.partition(".")[0]
_LONGEST = 16 << 10
_SEVERITIES = {
    logging.DEBUG: SeverityNumber.DEBUG,
    logging.INFO: SeverityNumber.INFO,
    logging.WARNING: SeverityNumber.WARN,
    logging.ERROR: SeverityNumber.ERROR,
    logging.CRITICAL: SeverityNumber.FATAL,
}


class TelemetryLogs(logging.Handler):
    """Sends what this package logs, from now until it is closed. Not what others log: the exporter's own complaints
    would be sent in turn."""

    def __init__(self, resource: Resource, redact: Callable[[str], str]) -> None:
        super().__init__()
        self._provider = LoggerProvider(resource)
        self._provider.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
        self._logger = self._provider.get_logger(_PACKAGE, __version__)
        self._redact = redact
        logging.getLogger(_PACKAGE).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._logger.emit(
                timestamp=int(record.created * 1e9),
                context=get_current(),
                severity_text=record.levelname,
                severity_number=_SEVERITIES.get(record.levelno, SeverityNumber.UNSPECIFIED),
                # Redacted before it is cut: half of a secret could not be recognised.
                body=cut(self._redact(self.format(record)), _LONGEST),
                attributes={"log.logger": record.name},
            )
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Sends what is left; blocks until that is done or has failed."""
        logging.getLogger(_PACKAGE).removeHandler(self)
        self._provider.shutdown()
        super().close()
