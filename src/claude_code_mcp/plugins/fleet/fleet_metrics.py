"""Prometheus metrics of a gateway: the machines' reports, offline machines and waiting sessions.

Machines count what happens in sessions, each at its own `/metrics`. Imports prometheus_client, so only gateways that
serve HTTP import this module.
"""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from .machines import FleetMember, Machine

_PREFIX = "claude_code_mcp_fleet"
_LABELS = ("machine", "id")


class FleetMetrics(Collector):
    """Reads the state of the fleet for each rendering."""

    def __init__(
        self,
        machines: Callable[[], Sequence[Machine]],
        gone: Callable[[], Sequence[FleetMember]],
        waiting: Callable[[], int],
    ) -> None:
        self._machines = machines
        self._gone = gone
        self._waiting = waiting
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        machines = self._machines()
        present = GaugeMetricFamily(
            f"{_PREFIX}_machine_up", "1 if the machine responds, 0 if it does not", labels=_LABELS
        )
        for machine in machines:
            present.add_metric((machine.name, machine.id), 1)
        for member in self._gone():
            present.add_metric((member.name, member.id), 0)
        yield present
        for name, help_text, value in (
            ("sessions", "Busy sessions on the machine", lambda machine: machine.sessions),
            ("capacity", "Maximum number of sessions on the machine", lambda machine: machine.capacity),
            ("free_memory_bytes", "Free memory of the machine", lambda machine: machine.free_memory),
            ("draining", "1 if the machine accepts no new sessions", lambda machine: int(machine.draining)),
        ):
            family = GaugeMetricFamily(f"{_PREFIX}_machine_{name}", help_text, labels=_LABELS)
            for machine in machines:
                family.add_metric((machine.name, machine.id), value(machine))
            yield family
        yield GaugeMetricFamily(f"{_PREFIX}_waiting", "New sessions waiting for a machine", value=self._waiting())
