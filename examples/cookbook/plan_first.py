"""Have Claude plan, send the plan back until it is good, then let it work without further questions about edits.

python plan_first.py ~/src/shop "Move the invoices to the new database"
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable

from claude_code_mcp import Answer, Outcome, Service, SessionOptions


async def ask_person(plan: str) -> str:
    """What to change in the plan; empty to approve it."""
    print(f"\n{plan}\n")
    return (await asyncio.to_thread(input, "What to change (Enter approves): ")).strip()


async def plan_first(
    service: Service, directory: str, task: str, judge: Callable[[str], Awaitable[str]] = ask_person
) -> Outcome:
    options = SessionOptions(cwd=directory, permission_mode="plan")
    turn = await service.create(task, options)
    while not turn.done():
        session = await service.wait(turn.session.id)
        for question in session.questions:
            if question.kind != "plan_review":
                answer = Answer(allow=False, message="Do only what the plan says, without further permissions.")
            elif feedback := await judge(str(question.tool_input.get("plan", ""))):
                answer = Answer(allow=False, message=feedback)
            else:
                answer = Answer(allow=True, mode="acceptEdits")
            service.respond(session.id, question.id, answer)
    return await turn.outcome()


async def main(directory: str, task: str) -> None:
    async with Service() as service:
        print((await plan_first(service, directory, task)).result)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
