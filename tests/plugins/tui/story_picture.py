"""A whole story in the terminal interface as one moving picture: an SVG that shows its frames one after the other.

A frame is what Textual draws of the screen, with a caption below it. Without animation, or for whoever wants no motion,
the picture is one of its frames.
"""

import asyncio
import re
import subprocess
from collections.abc import Callable, Sequence
from typing import NamedTuple

from textual.widgets import Checkbox, Input, TextArea

from claude_code_mcp.cli.demo import DemoServer, Project, projects
from claude_code_mcp.plugins.tui.application import Tui
from claude_code_mcp.plugins.tui.changes_screen import ChangesScreen
from claude_code_mcp.plugins.tui.dialog_screens import AskLine, NewSession
from claude_code_mcp.plugins.tui.question_panel import QuestionPanel
from claude_code_mcp.testing.script import script

SIZE = (100, 28)
MAX_WAIT = 120.0
_FONT_FACE = re.compile(r"@font-face \{[^}]*\}")
"""Where a font would be fetched from; without it the reader's own monospace font is used."""
_VIEW_BOX = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')
_IDENTITY = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
_CAPTION = 46
"""The height of the line below a frame."""


class StoryFrame(NamedTuple):
    """A screen as Textual exports it, what is said of it, and how long it is shown."""

    drawn: str
    caption: str
    seconds: float


def without_fonts(drawn: str) -> str:
    return _FONT_FACE.sub("", drawn)


def moving_picture(frames: Sequence[StoryFrame], still: int) -> str:
    """The frames as one SVG, over and over; `still` is the one that is shown where nothing moves."""
    found = _VIEW_BOX.search(frames[0].drawn)
    assert found is not None
    width, height = float(found[1]), float(found[2])
    total = sum(frame.seconds for frame in frames)
    rules, parts, begin = [], [], 0.0
    for number, frame in enumerate(frames):
        end = begin + frame.seconds
        first, last = 100 * begin / total, 100 * end / total
        before = "0% { visibility: hidden } " if number else ""
        after = f" {last:.3f}% {{ visibility: hidden }}" if number < len(frames) - 1 else ""
        rules.append(f"@keyframes f{number} {{ {before}{first:.3f}% {{ visibility: visible }}{after} }}")
        shown = "visible" if number == still else "hidden"
        rules.append(f".f{number} {{ visibility: {shown}; animation: f{number} {total:g}s step-end infinite }}")
        parts.append(
            f'<g class="f{number}"><svg width="{width:g}" height="{height:g}">{without_fonts(frame.drawn)}</svg>'
            f'<text class="caption" x="{width / 2:g}" y="{height + 30:g}">{frame.caption}</text></g>'
        )
        begin = end
    style = (
        ".caption { font: 22px sans-serif; fill: #c9d1d9; text-anchor: middle } "
        "@media (prefers-reduced-motion: reduce) { g { animation: none !important } } " + " ".join(rules)
    )
    box = f'viewBox="0 0 {width:g} {height + _CAPTION:g}"'
    ground = f'<rect width="{width:g}" height="{height + _CAPTION:g}" rx="10" fill="#161b22"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}><style>{style}</style>{ground}{"".join(parts)}</svg>\n'


def lay_out(server: DemoServer) -> Project:
    """Makes the directory of the story a git repository, in which the model has something to say to a comment too."""
    shop = next(project for project in projects() if project.name == "shop")
    place = server.sandbox.project / shop.name
    steps = (*shop.steps[:3], "Good point: I will add a test with two of an item.")
    (place / "CLAUDE.md").write_text(script("What the model says here:", *steps), encoding="utf-8")
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "Begin"]):
        subprocess.run(["git", "-C", str(place), *_IDENTITY, *command], check=True)
    return shop


async def take_story(server: DemoServer, started: dict[str, str], shop: Project) -> str:
    """A task from its first word to a comment on its changes, while other sessions ask; the picture of it."""
    app = Tui(server.open, str(server.sandbox.project / shop.name))
    frames: list[StoryFrame] = []
    async with app.run_test(size=SIZE) as pilot:

        async def until(reached: Callable[[], object]) -> None:
            async with asyncio.timeout(MAX_WAIT):
                while not reached():
                    await pilot.pause(0.05)

        async def take(caption: str, seconds: float) -> None:
            await pilot.pause(0.3)
            drawn = app.export_screenshot(title="claude-code-mcp tui", simplify=True)
            frames.append(StoryFrame(drawn, caption, seconds))

        def is_at_rest(blocks: int) -> bool:
            shown = app.pump.conversation
            return shown is not None and not shown.busy and len(shown.blocks) >= blocks

        panel = app.main.query_one(QuestionPanel)
        await until(lambda: len(app.pump.open_questions()) == len(started) - 1 and len(app.main.rows) == len(started))
        await pilot.press("f2")
        await until(lambda: isinstance(app.screen, NewSession))
        app.screen.query_one("#directory", Input).value = "."
        for text in ("", shop.prompt):
            app.screen.query_one("#prompt", TextArea).text = text
            app.screen.query_one("#worktree", Checkbox).value = bool(text)
            await take("F2: a task, in a git worktree of its own.", 1.5)
        await pilot.press("ctrl+s")
        await until(lambda: panel.asked is not None and panel.asked.session.session_id == app.main.current)
        await pilot.press("ctrl+n")
        await take("Claude asks before it edits: the change in its place, and one key decides.", 4)
        await pilot.press("a")
        await until(lambda: is_at_rest(6))
        await take("Allowed once, and done. Other sessions that need you stand first.", 3)
        await pilot.press("f9")
        await until(lambda: isinstance(app.screen, ChangesScreen))
        await pilot.press("down", "down", "c")
        await until(lambda: isinstance(app.screen, AskLine))
        app.screen.query_one(Input).value = "Is there a test for it?"
        await pilot.press("enter")
        await until(lambda: isinstance(app.screen, ChangesScreen))
        await take("F9: everything it has changed, with comments on lines.", 4)
        await pilot.press("s")
        await until(lambda: is_at_rest(8))
        await take("All comments go back as one message. Merge or discard it with F9.", 3.5)
        await pilot.press("ctrl+n")
        await until(lambda: panel.asked is not None)
        await take("Ctrl+N: the next question of any session, such as a plan.", 3.5)
    return moving_picture(frames, still=2)
