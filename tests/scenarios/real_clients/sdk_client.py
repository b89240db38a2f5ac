"""A client of the TypeScript SDK, run in Node and driven from here."""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.waiting import HANG_SECONDS

from .packages import Packages
from .serving import Served


class CallFailed(Exception):
    """The client reported a failure of the protocol or of the connection."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Which SDK, and which era it is told to speak."""

    sdk: str
    era: str

    def __str__(self) -> str:
        return f"{self.sdk}-{self.era}"


class SdkClient:
    """One connection. Every method waits for the client's reply."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def tell(self, **command: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise CallFailed(f"the client ended with {self._process.wait(HANG_SECONDS)}")
        reply = json.loads(line)
        if "failed" in reply:
            raise CallFailed(f"{reply['failed']} ({reply['code']})")
        return reply["ok"]

    def connect(self) -> Mapping[str, Any]:
        reply: Mapping[str, Any] = self.tell(do="connect")
        return reply

    def tools(self) -> list[dict[str, Any]]:
        tools: list[dict[str, Any]] = self.tell(do="tools")["tools"]
        return tools

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The structured content of a call that must succeed."""
        result = self.tell(do="call", name=name, args=arguments)
        assert not result.get("isError"), result
        structured: dict[str, Any] = result["structuredContent"]
        return structured

    @property
    def asked(self) -> list[dict[str, Any]]:
        """The forms that the person was shown."""
        forms: list[dict[str, Any]] = self.tell(do="asked")
        return forms


@contextmanager
def sdk_client(
    packages: Packages,
    kind: Kind,
    served: Served,
    environment: Mapping[str, str],
    answers: Sequence[Mapping[str, Any]] = (),
) -> Iterator[SdkClient]:
    """A client, not yet connected. With `answers` it can be asked; the last of them is given again and again."""
    where = {"url": served.url, "headers": dict(served.headers), "command": list(served.command)}
    request = {"sdk": kind.sdk, "era": kind.era, "answers": list(answers), **where}
    process = subprocess.Popen(
        [packages.node, packages.bridge, json.dumps(request)],
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield SdkClient(process)
        SdkClient(process).tell(do="close")
        process.communicate(timeout=HANG_SECONDS)
        assert process.returncode == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
