"""A server that is killed at a chosen moment, while a session that a usage limit has stopped continues."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.model.events import AuditEvent, Event, Message, ProcessChanged, TurnEnded, TurnStarted
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.service import Service

MOMENTS: dict[str, Callable[[Event], bool]] = {
    "turn": lambda event: isinstance(event, TurnStarted),
    "process": lambda event: isinstance(event, ProcessChanged) and event.change == "started",
    "init": lambda event: isinstance(event, Message) and event.raw.get("subtype") == "init",
    "answer": lambda event: isinstance(event, Message) and event.type == "assistant",
    "ended": lambda event: isinstance(event, TurnEnded),
}
"""From the acceptance of the message to the end of its turn."""


class KillingWorker:
    """Ends this process at the first event of a kind, once it is armed."""

    def __init__(self, moment: str) -> None:
        self._is_moment = MOMENTS.get(moment)
        self.armed = False

    def event(self, session_id: str, owner: str, event: Event) -> None:
        if self.armed and self._is_moment is not None and self._is_moment(event):
            kill()

    def act(self, act: AuditEvent) -> None:
        """Of no interest."""


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(moment: str, prompt: str, state_dir: str, cwd: str) -> None:
    killer = KillingWorker(moment)
    service = Service(load_settings({}, state_dir=state_dir))
    service.observe(killer)
    async with service:
        turn = await service.create(prompt, SessionOptions(cwd=cwd, on_limit="wait"))
        await turn.outcome()
        print(turn.session.id, flush=True)
        if moment == "stopped":
            kill()
        # With a process of its own: that begins after the message was accepted.
        turn.session.park()
        await turn.session.closed()
        killer.armed = True
        await service.steer_limit(turn.session.id, "now")
        await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
