"""Pictures of the terminal interface as SVG, and a story as a moving one, made from the demo.

python -m tests.plugins.tui.pictures docs/pictures
"""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from claude_code_mcp.cli.demo import DemoServer, demo_server
from claude_code_mcp.plugins.tui.application import Tui
from claude_code_mcp.plugins.tui.conversation_view import ConversationView
from claude_code_mcp.plugins.tui.question_panel import QuestionPanel

from .story_picture import MAX_WAIT, lay_out, take_story, without_fonts


async def take_pictures(server: DemoServer, started: dict[str, str], directory: Path) -> list[Path]:
    """Goes through the demo as a person would, and takes a picture of each thing worth one."""
    app = Tui(server.open, str(server.sandbox.project), session_id=started["shop"])
    taken: list[Path] = []
    async with app.run_test(size=(116, 34)) as pilot:

        async def until(reached: Callable[[], object]) -> None:
            async with asyncio.timeout(MAX_WAIT):
                while not reached():
                    await pilot.pause(0.1)

        def take(name: str) -> None:
            taken.append(directory / f"tui-{name}.svg")
            drawn = app.export_screenshot(title="claude-code-mcp tui", simplify=True)
            taken[-1].write_text(without_fonts(drawn), encoding="utf-8")

        panel = app.main.query_one(QuestionPanel)
        await until(lambda: len(app.pump.open_questions()) == 3 and panel.asked is not None)
        await pilot.press("ctrl+n")
        await pilot.pause(0.5)
        take("permission")
        await pilot.press("a")
        await until(lambda: app.pump.conversation is not None and not app.pump.conversation.busy)
        view = app.main.query_one(ConversationView)
        view.focus()
        await pilot.press("up", "up", "enter")
        await pilot.pause(0.5)
        take("conversation")
        for name in ("billing", "search"):
            app.main.open_session(started[name])
            await until(lambda: panel.asked is not None and panel.asked.session.session_id == started[name])  # noqa: B023
            await pilot.press("ctrl+n")
            await pilot.pause(0.5)
            take({"billing": "plan", "search": "question"}[name])
            await pilot.press("escape")
    return taken


def main(directory: Path) -> int:
    directory.mkdir(parents=True, exist_ok=True)
    with demo_server() as (server, sessions):
        started = server.start_sessions(sessions)
        for picture in asyncio.run(take_pictures(server, started, directory)):
            print(picture)
    # A server of its own: the task of the story is begun by the person in it.
    with demo_server() as (server, sessions):
        started = server.start_sessions(sessions, without="shop")
        story = directory / "tui-story.svg"
        story.write_text(asyncio.run(take_story(server, started, lay_out(server))), encoding="utf-8")
        print(story)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures")))
