"""Services whose sessions run the real CLI with a hole in its channel, and what was written to the audit trail."""

import asyncio
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.claude.executable import bundled_executable
from claude_code_mcp.core.model.caller import Caller
from claude_code_mcp.core.model.events import AuditEvent, Event, ProcessChanged
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.policy.policy import Policy
from claude_code_mcp.core.service import PendingTurn, Service
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import Step, StepObject, script, tool
from tests.conftest import StartService
from tests.core.sessions.support import PATIENCE
from tests.support.forging_cli import PIPE, REAL, forge, install_forging_cli

HOLD = "until [ -e go ]; do sleep 0.05; done"
"""Keeps a command running until the test makes the file `go`, or the process is ended."""


@dataclass
class Trail:
    """An observer that remembers which processes were ended for what they said, and by whom sessions were refused."""

    refuted: list[tuple[str, str, str]] = field(default_factory=list)
    acts: list[AuditEvent] = field(default_factory=list)

    def act(self, act: AuditEvent) -> None:
        self.acts.append(act)

    def event(self, session_id: str, owner: str, event: Event) -> None:
        if isinstance(event, ProcessChanged) and event.change == "protocol_violation":
            self.refuted.append((session_id, owner, event.detail))


@dataclass
class Forgery:
    """A service whose sessions can forge frames."""

    service: Service
    sandbox: Sandbox
    trail: Trail

    async def begin(self, *steps: Step, owner: str = "mallory", **options: Any) -> PendingTurn:
        """A session of its own with a pipe of its own."""
        env = {PIPE: str(self.sandbox.root / f"forge-{uuid.uuid4().hex}")}
        given = {"cwd": str(self.sandbox.project), "allowed_tools": ("Bash",), "env": env, **options}
        return await self.service.create(script("go", *steps), SessionOptions(**given), caller=Caller(owner))

    async def refuted(self) -> tuple[str, str, str]:
        """Waits until a process was ended for what it said; returns its session, the owner and the reason."""
        async with asyncio.timeout(PATIENCE):
            while not self.trail.refuted:  # noqa: ASYNC110 - no session need have an event of it
                await asyncio.sleep(0.02)
        return self.trail.refuted[-1]

    def writing(self, *frames: Any, then: str = HOLD) -> StepObject:
        """A command that forges frames, and then waits."""
        return tool("Bash", command=f"{forge(*frames)}; {then}")


@pytest.fixture
def forging_cli(sandbox: Sandbox) -> Path:
    return install_forging_cli(sandbox.root / "bin")


StartForgery = Any


@pytest.fixture
def start_forgery(start_service: StartService, sandbox: Sandbox, forging_cli: Path) -> StartForgery:
    async def start(policy: Policy | None = None, **settings: Any) -> Forgery:
        trail = Trail()
        service = await start_service(
            {REAL: str(bundled_executable())},
            policy=policy,
            observers=[trail],
            claude_path=str(forging_cli),
            **settings,
        )
        return Forgery(service, sandbox, trail)

    return start


@pytest.fixture
async def forgery(start_forgery: StartForgery) -> Forgery:
    started = await start_forgery()
    assert isinstance(started, Forgery)
    return started
