"""A receiver of OTLP over HTTP on loopback: decodes what it gets, and keeps it."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.local_http import Handler, site


@dataclass
class Receiver:
    url: str = ""
    spans: list[Any] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    logs: list[Any] = field(default_factory=list)

    def names(self, begin: str) -> list[tuple[str, str]]:
        """The spans whose names begin so, with their traces."""
        return [(span.name, span.trace_id.hex()) for span in self.spans if span.name.startswith(begin)]

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(attributes_of(resource.resource))
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        elif path == "/v1/logs":
            for resource in ExportLogsServiceRequest.FromString(body).resource_logs:
                self.logs += [record for scope in resource.scope_logs for record in scope.log_records]
        elif path == "/v1/metrics":
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.metrics |= {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}


def attributes_of(holder: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in holder.attributes}


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Collector(Handler):
        def do_POST(self) -> None:
            body = self.body()
            receiver.take(self.path, gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.answer()

    with site(Collector) as receiver.url:
        yield receiver
