"""The services of the compose file with three machines, as processes: their own lines make a fleet of three."""

import json
import shlex
import sys
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.ports import free_port
from tests.support.waiting import HANG_SECONDS

from .deployment import read_yaml, text_of
from .processes import environment, output_of, running

pytest.importorskip("nats", reason="the extra `fleet` is not installed")


class Machines:
    """Runs services of the file on this machine: each with directories of its own for its volumes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._services: dict[str, dict[str, Any]] = read_yaml(text_of("container/fleet.compose.yaml"))["services"]
        self._ports = {"4222": free_port(), "8765": free_port()}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._ports['8765']}"

    def environment(self, service: str) -> dict[str, str]:
        return environment(self._place(service, "/home/claude"), self._place(service, "/state"))

    def command(self, service: str) -> list[str]:
        """What the container would run, with this machine's addresses and directories in it."""
        found = self._services[service]
        entry = [word for word in found.get("entrypoint", ["claude-code-mcp"]) if word not in ("tini", "--")]
        tickets = str(self._place(service, "/tickets")) if service != "one" else ""
        return [*entry, *(self._translated(word, tickets) for word in found["command"])]

    def _translated(self, word: str, tickets: str) -> str:
        for port, there in self._ports.items():
            for host in ("0.0.0.0", "one"):
                word = word.replace(f"{host}:{port}", f"127.0.0.1:{there}")
        return word.replace("$$", "$").replace("/tickets/", f"{shlex.quote(tickets)}/")

    def _place(self, service: str, target: str) -> Path:
        mounts: dict[str, str] = dict(reversed(mount.split(":")) for mount in self._services[service]["volumes"])
        place = self._directory / mounts.get(target, f"{service}-without{target.replace('/', '-')}")
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        return place

    def run(self, service: str) -> None:
        output_of(self.command(service), self.environment(service))

    def running(self, service: str, until_it_says: str) -> AbstractContextManager[None]:
        return running(self.command(service), self.environment(service), until_it_says)

    def status(self) -> dict[str, dict[str, Any]]:
        command = ["claude-code-mcp", "fleet", "status", "--json"]
        return {machine["name"]: machine for machine in json.loads(output_of(command, self.environment("one")))}


@pytest.mark.soak  # the fleet: tests/plugins/fleet/test_story.py; the files: test_deployment_files.py
@pytest.mark.skipif(sys.platform == "win32", reason="containers have a shell")
def test_three_machines_find_each_other_and_a_restarted_one_comes_back_with_its_used_ticket(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    with ExitStack() as others, machines.running("one", "--join "):
        assert httpx2.get(f"{machines.url}/health", timeout=HANG_SECONDS).json()["status"] == "ok"
        machines.run("tickets")
        others.enter_context(machines.running("three", "three ("))
        with machines.running("two", "two ("):
            seen = machines.status()
            assert set(seen) == {"one", "two", "three"}
            assert not any(machine["gone"] for machine in seen.values())
            assert (seen["two"]["capacity"], seen["three"]["labels"]) == (6, ["gpu"])
        with machines.running("two", f"two ({seen['two']['id']})"):
            others.close()
