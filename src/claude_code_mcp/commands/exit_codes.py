"""What the exit codes of all commands mean, and which one belongs to an error. Light: `serve` imports this too."""

from enum import IntEnum

from ..errors import ClaudeCodeError


class ExitCode(IntEnum):
    """The same in every command; docs/shell.md has the table, and a test compares the two."""

    DONE = 0
    """It was done; the turn completed."""
    FAILED = 1
    """It was tried and failed, or something was found wrong: a turn that ended with an error, a check."""
    MISUSE = 2
    """The command line, a setting or a value in it makes no sense."""
    NOT_FOUND = 3
    """There is no such session, question, server or file, or several fit its name."""
    REFUSED = 4
    """The policy, a limit, another writer or the person says no; or a question was denied because nobody was there."""
    UNAVAILABLE = 5
    """No server runs, or an MCP server or Claude Code cannot be used now."""
    INTERRUPTED = 130
    """Ctrl-C; another signal is 128 and its number."""


class NotFound(ClaudeCodeError):
    """What a command names is not there."""

    code = "NOT_FOUND"


class Unavailable(ClaudeCodeError):
    """What a command needs does not answer."""

    code = "UNAVAILABLE"


_BY_CODE = {
    "INVALID_ARGUMENT": ExitCode.MISUSE,
    "SESSION_NOT_FOUND": ExitCode.NOT_FOUND,
    "NOT_FOUND": ExitCode.NOT_FOUND,
    "PERMISSION_DENIED": ExitCode.REFUSED,
    "LIMIT_REACHED": ExitCode.REFUSED,
    "RATE_LIMITED": ExitCode.REFUSED,
    "SESSION_BUSY": ExitCode.REFUSED,
    "CANCELLED": ExitCode.REFUSED,
    "CLI_NOT_FOUND": ExitCode.UNAVAILABLE,
    "UPSTREAM_UNAVAILABLE": ExitCode.UNAVAILABLE,
    "UNAVAILABLE": ExitCode.UNAVAILABLE,
}


def exit_code_of(code: str) -> int:
    """The exit code for the code of an error, ours or one that a server has answered with."""
    return int(_BY_CODE.get(code, ExitCode.FAILED))
