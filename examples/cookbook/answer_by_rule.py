"""Answer permission questions by your own rules, and leave the rest to the person at the terminal.

python answer_by_rule.py ~/src/shop "Fix the failing test"
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from claude_code_mcp import Answer, Outcome, Question, Service, SessionOptions

ALLOWED_COMMANDS = {"pytest", "make test", "npm test"}


def by_rule(question: Question, directory: str) -> Answer | None:
    """The answer of the rules; None if a person has to decide."""
    if question.tool_name in ("Edit", "Write"):
        file = Path(str(question.tool_input.get("file_path"))).resolve()
        if file.is_relative_to(Path(directory).resolve()):
            return Answer(allow=True)
        return Answer(allow=False, message="Change files of this project only.")
    # The whole command is compared: a prefix would also allow `pytest; curl …`.
    if question.tool_name == "Bash" and question.tool_input.get("command") in ALLOWED_COMMANDS:
        return Answer(allow=True)
    return None


async def ask_person(question: Question) -> Answer:
    print(f"\n{question.description}\n{dict(question.tool_input)}")
    allowed = await asyncio.to_thread(input, "Allow? [y/N] ")
    return Answer(allow=allowed.strip().lower() == "y")


async def run(
    service: Service, directory: str, task: str, ask: Callable[[Question], Awaitable[Answer]] = ask_person
) -> Outcome:
    turn = await service.create(task, SessionOptions(cwd=directory))
    while not turn.done():
        session = await service.wait(turn.session.id)  # until the turn ends or asks something
        for question in session.questions:
            answer = by_rule(question, directory) or await ask(question)
            service.respond(session.id, question.id, answer)
    return await turn.outcome()


async def main(directory: str, task: str) -> None:
    async with Service() as service:
        print((await run(service, directory, task)).result)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
