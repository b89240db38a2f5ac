"""Give every project the same task, a few at a time, and report what each session did and cost.

python fan_out.py "Update the copyright year in LICENSE" ~/src/shop ~/src/blog ~/src/docs
"""

import asyncio
import sys

from claude_code_mcp import Outcome, Service, SessionOptions

AT_ONCE = 3


async def fan_out(service: Service, task: str, directories: list[str]) -> dict[str, Outcome]:
    """Runs one session per directory and returns how each of them ended."""
    free = asyncio.Semaphore(AT_ONCE)

    async def run(directory: str) -> Outcome:
        async with free:
            # Edits are accepted without a question. Everything else that needs a permission is denied.
            options = SessionOptions(cwd=directory, permission_mode="acceptEdits", ask=False, max_turns=30)
            turn = await service.create(task, options)
            return await turn.outcome()

    outcomes = await asyncio.gather(*(run(directory) for directory in directories))
    return dict(zip(directories, outcomes, strict=True))


async def main(task: str, directories: list[str]) -> None:
    async with Service() as service:
        for directory, outcome in (await fan_out(service, task, directories)).items():
            print(f"{outcome.code:12} ${outcome.usage.cost_usd:.2f}  {directory}: {outcome.result or outcome.detail}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
