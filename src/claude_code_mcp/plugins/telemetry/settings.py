"""The telemetry settings."""

from pydantic import Field, SecretStr, field_validator

from ...core.processes.environment import OWN_PREFIX
from ...core.settings_section import Section, list_of

_OWN = OWN_PREFIX


class TelemetrySettings(Section):
    """Where the audit trail is copied to, and whether traces are exported."""

    audit_sinks: tuple[str, ...] = Field((), validation_alias=f"{_OWN}AUDIT_SINKS")
    """Additional destinations of the audit trail, separated by commas: `stdout` (over HTTP only), `syslog:` (of this
    machine), `syslog+udp://HOST:PORT`, `syslog+tcp://HOST:PORT`, or an `https` URL that receives POST requests."""
    audit_token: SecretStr | None = Field(None, validation_alias=f"{_OWN}AUDIT_TOKEN")
    """The bearer token for that URL."""
    otel: bool = Field(False, validation_alias=f"{_OWN}OTEL")
    """Whether to export traces, metrics and logs with OpenTelemetry. Needs the extra `otel`. The usual variables set
    the destination, such as `OTEL_EXPORTER_OTLP_ENDPOINT`; see observability.md."""

    @field_validator("audit_sinks", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return list_of(value)
