"""The MCP Inspector's command line: one process, and so one connection, for every request."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.waiting import HANG_SECONDS

from .packages import Packages
from .serving import Served

_PROGRAM = ("@modelcontextprotocol", "inspector", "clients", "launcher", "build", "index.js")
_SECONDS = HANG_SECONDS


@dataclass(frozen=True, slots=True)
class Inspector:
    """Asks a server in one era."""

    packages: Packages
    served: Served
    era: str
    environment: Mapping[str, str]

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        argv = [str(self.packages.node), str(self.packages.script(*_PROGRAM)), "--cli", *self._target(), *options]
        return subprocess.run(
            [*argv, "--protocol-era", self.era, "--format", "json", "--stored-auth-only"],
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )

    def _target(self) -> list[str]:
        if self.served.url is None:
            passed_on = [word for pair in self.environment.items() for word in ("-e", "=".join(pair))]
            return [*self.served.command, *passed_on]
        headers = [f"{name}: {value}" for name, value in self.served.headers.items()]
        return ["--server-url", self.served.url, "--transport", "http", "--header", *headers]

    def ask(self, *options: str) -> dict[str, Any]:
        """The result of a request that must succeed."""
        done = self.run(*options)
        assert done.returncode == 0, done.stderr + done.stdout
        reply: dict[str, Any] = json.loads(done.stdout)
        return reply

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The structured content of a tool's result."""
        given = ("--tool-name", name, "--tool-args-json", json.dumps(arguments))
        result = self.ask("--method", "tools/call", *given)
        structured: dict[str, Any] = result.get("result", result)["structuredContent"]
        return structured
