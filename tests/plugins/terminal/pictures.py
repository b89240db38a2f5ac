"""Takes the pictures of docs/terminal-sessions.md, on the real CLI in tmux:

python -m tests.plugins.terminal.pictures

The same question in the terminal and on a phone, and the terminal after it was answered on the phone.
"""

import io
import json
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import expect, sync_playwright
from rich.console import Console
from rich.text import Text

from claude_code_mcp.core.claude.executable import find_executable
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import text, tool
from tests.plugins.console.browser.chromium import find_chromium
from tests.plugins.console.browser.console import PHONE, launch, write_script
from tests.plugins.console.browser.pictures import SETTLED
from tests.plugins.tui.story_picture import without_fonts
from tests.support.program import COMMAND
from tests.support.waiting import until

from .conftest import prepare_home

PLACE = Path(__file__).parents[3] / "docs" / "pictures"
COLUMNS, ROWS = 84, 24
TASK = "Move the settings to TOML and update the tests"


class Tmux:
    """One terminal with `claude`, which a person started."""

    def __init__(self, sandbox: Sandbox, environment: Mapping[str, str]) -> None:
        self._environment = {**environment, "TERM": "xterm-256color"}
        self._tmux = [shutil.which("tmux") or "tmux", "-L", f"pictures-{uuid.uuid4().hex}", "-f", os.devnull]
        claude = [find_executable(None, environment), TASK]
        size = ["-x", str(COLUMNS), "-y", str(ROWS)]
        self._run("new-session", "-d", *size, "-c", str(sandbox.project), *claude)

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._tmux, *arguments], env=self._environment, stdout=subprocess.PIPE, text=True, check=True
        )
        return done.stdout

    def shows(self, wanted: str) -> None:
        try:
            until(lambda: wanted in self._run("capture-pane", "-p"))
        except AssertionError:
            raise AssertionError(f"{wanted!r} is not shown:\n{self._run('capture-pane', '-p')}") from None

    def take(self, name: str, last: str) -> None:
        """A picture from the task to the line that has `last`."""
        lines = self._run("capture-pane", "-p", "-e").rstrip().split("\n")
        first = next(number for number, line in enumerate(lines) if TASK in line)
        end = max(number for number, line in enumerate(lines) if last in line) + 1
        console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
        console.print(Text.from_ansi("\n".join(lines[first:end])))
        drawn = console.export_svg(title="claude")
        (PLACE / f"{name}.svg").write_text(without_fonts(drawn), encoding="utf-8")

    def close(self) -> None:
        self._run("kill-server")


@contextmanager
def connected(sandbox: Sandbox, environment: Mapping[str, str]) -> Iterator[str]:
    """A shared server, and the plugin in Claude Code; the value is a link to the console."""

    def run(*arguments: str) -> str:
        command = [COMMAND, *arguments]
        return subprocess.run(command, env=dict(environment), stdout=subprocess.PIPE, text=True, check=True).stdout

    run("shared", "start")
    run("terminal", "connect")
    try:
        yield json.loads(run("web", "--json"))["url"]
    finally:
        run("terminal", "disconnect")
        run("shared", "stop")


def main() -> None:
    with tempfile.TemporaryDirectory() as root, ScriptedModelThread() as model, sync_playwright() as playwright:
        place = Path(root) / "src"  # the console shows the last two parts of the directory
        place.mkdir()
        sandbox = Sandbox(place, model.url)
        environment = sandbox.environment(XDG_RUNTIME_DIR=root)
        prepare_home(sandbox, environment)
        settings = sandbox.home / ".claude" / "settings.json"
        settings.parent.mkdir()
        settings.write_text('{"permissions": {"defaultMode": "default"}}')  # the scripted model has no classifier
        write_script(
            sandbox.project,
            tool("Bash", command="pytest -q tests/settings", description="Run the tests of the settings"),
            text("The settings are in TOML now."),
        )
        with connected(sandbox, environment) as url:
            terminal = Tmux(sandbox, environment)
            browser = launch(playwright.chromium, find_chromium())
            try:
                terminal.shows("Do you want to proceed?")
                terminal.take("terminal-question", "Esc to cancel")
                page = browser.new_context(**PHONE, color_scheme="dark").new_page()
                page.goto(url)
                page.get_by_text(TASK).first.click()
                allow = page.get_by_role("button", name="Allow once")
                expect(allow).to_be_enabled()
                page.wait_for_timeout(SETTLED)
                page.screenshot(path=PLACE / "terminal-phone.png")
                allow.click()
                terminal.shows("in TOML now.")
                terminal.shows("· done")
                terminal.take("terminal-answered", "· done")
            finally:
                browser.close()
                terminal.close()


if __name__ == "__main__":
    main()
