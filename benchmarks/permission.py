"""A permission question, answered at once: what the way through the engine adds to a tool call."""

from collections.abc import Sequence

from claude_code_mcp.core.model.events import Message, QuestionOpened, TurnEnded
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.model.question import Answer
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing.script import script, tool

from .common import Figure, Place, benchmark, difference, no_collection
from .raw import RawSession, tool_times

_TOOLS = 5
_ROUNDS = 12
_PROMPT = script("Touch.", *(tool("Bash", command=f"touch file{number}") for number in range(_TOOLS)), "Done.")


@benchmark
async def permission_question(place: Place) -> Sequence[Figure]:
    """A tool call with a permission question that is answered at once."""
    bare: list[float] = []
    engine: list[float] = []
    with RawSession(place) as raw:
        async with place.service() as service:
            turn = await service.create(script("Hello.", "Hello."), SessionOptions(cwd=place.cwd))
            session = turn.session
            await turn.outcome()
            raw.turn(_PROMPT)
            await _engine(service, session.id)
            with no_collection():
                for _ in range(_ROUNDS):
                    bare += tool_times([(moment, frame) for moment, _, frame in raw.turn(_PROMPT)])
                    engine += await _engine(service, session.id)
    return [difference("a permission question", bare, engine, 3)]


async def _engine(service: Service, session_id: str) -> list[float]:
    seen = []
    questions = 0
    with service.watch(session_id) as events:
        await service.send(session_id, _PROMPT)
        async for event in events:
            match event:
                case QuestionOpened():
                    service.respond(session_id, event.question.id, Answer(allow=True))
                    questions += 1
                case Message():
                    seen.append((event.at, dict(event.raw)))
                case TurnEnded():
                    break
    assert questions == _TOOLS
    return tool_times(seen)
