"""What a gateway tells Prometheus of its machines."""

from claude_code_mcp.plugins.fleet.fleet_metrics import FleetMetrics
from claude_code_mcp.plugins.fleet.machines import FleetMember, Machine


def test_every_machine_is_shown_also_one_that_is_gone() -> None:
    there = Machine("m1", 'a "desk"', "1.0", "2.1.325", frozenset(), 4, 3, 8 << 30, True, ())
    shown = FleetMetrics(lambda: [there], lambda: [FleetMember("m2", "laptop")], lambda: 5).render().decode()
    lines = {line for line in shown.splitlines() if not line.startswith("#")}
    assert lines == {
        'claude_code_mcp_fleet_machine_up{id="m1",machine="a \\"desk\\""} 1.0',
        'claude_code_mcp_fleet_machine_up{id="m2",machine="laptop"} 0.0',
        'claude_code_mcp_fleet_machine_sessions{id="m1",machine="a \\"desk\\""} 3.0',
        'claude_code_mcp_fleet_machine_capacity{id="m1",machine="a \\"desk\\""} 4.0',
        'claude_code_mcp_fleet_machine_free_memory_bytes{id="m1",machine="a \\"desk\\""} 8.589934592e+09',
        'claude_code_mcp_fleet_machine_draining{id="m1",machine="a \\"desk\\""} 1.0',
        "claude_code_mcp_fleet_waiting 5.0",
    }
