"""What the plug-in adds to a server. The server imports this module at every start, so the rest is imported later."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from claude_code_mcp.plugin import Finding, Plugin

if TYPE_CHECKING:
    from claude_code_mcp import Isolation, Section, Settings

_TIMEOUT = 10.0


class WrapperPlugin(Plugin):
    """Runs every session through the command of the settings."""

    name = "wrapper"

    def section(self) -> "type[Section]":
        from .settings import WrapperSettings  # noqa: PLC0415

        return WrapperSettings

    def isolation(self) -> "type[Isolation]":
        from .isolation import WrappedSessions  # noqa: PLC0415

        return WrappedSessions

    def checks(self, settings: "Settings") -> Iterable[Finding]:
        import os  # noqa: PLC0415
        import subprocess  # noqa: PLC0415

        from .settings import WrapperSettings  # noqa: PLC0415

        words = settings.section(WrapperSettings).words
        if not words:
            yield Finding("wrapper", True, "not configured: CLAUDE_CODE_MCP_WRAPPER_COMMAND is not set")
            return
        advice = "It must start the command that follows, such as `nice` or `prlimit --nofile=4096 --`."
        try:
            # Without the variables of the server, which hold secrets.
            environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
            command = [*words, "/bin/echo", "ran"]
            ran = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            yield Finding("wrapper", False, f"{words[0]} cannot be run: {error}", advice)
            return
        if ran.returncode or ran.stdout != "ran\n":
            yield Finding("wrapper", False, f"{words[0]} did not run a command: {ran.stderr.strip()[:200]}", advice)
        else:
            yield Finding("wrapper", True, f"sessions run through {' '.join(words)}")
