"""A machine in a process of its own that can be frozen: `python -m tests.plugins.fleet.lease_holder URL ID SESSION`.

It holds a session and prints a line for everything that happens: `write` each time that it may write, `pause`,
`resume EPOCH`, `end EPOCH`.
"""

import asyncio
import sys

from claude_code_mcp.plugins.fleet.connection import connect
from claude_code_mcp.plugins.fleet.leases import Holding, Holdings, MachineLease
from claude_code_mcp.plugins.fleet.ownership import OwnershipBucket


class PrintedTurns:
    def pause(self) -> None:
        print("pause", flush=True)

    async def resume(self, holding: Holding) -> None:
        print(f"resume {holding.epoch}", flush=True)

    async def end(self, holding: Holding) -> None:
        print(f"end {holding.epoch}", flush=True)


async def main(url: str, machine: str, session: str) -> None:
    connection = await connect(url)
    lease = MachineLease(connection, machine, lambda: b"{}")
    holdings = Holdings(lease, await OwnershipBucket.opened(connection), PrintedTurns())
    async with lease.kept():
        holding = await holdings.claim(session, "alice")
        print(f"held {holding.epoch}", flush=True)
        while True:
            if holdings.valid(holding):
                print("write", flush=True)
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
