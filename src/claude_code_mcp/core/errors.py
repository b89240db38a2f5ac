"""Every refusal and failure that a caller can meet.

    ClaudeCodeError                INTERNAL
    ├── InvalidArgument            INVALID_ARGUMENT      the request itself is wrong
    │   └── QuestionClosed                               the question is unknown, answered, expired or withdrawn
    ├── SessionNotFound            SESSION_NOT_FOUND     no such session, in memory or on disk
    ├── SessionBusy                SESSION_BUSY          another writer holds the session
    ├── PermissionDenied           PERMISSION_DENIED     the policy or the owner says no
    │   └── RecordUnreadable                             what the session may do is no longer known
    ├── LimitReached LIMIT_REACHED sessions, budgets │ └── RateLimited RATE_LIMITED too much in a short time; retry
    later ├── TurnTimeout TIMEOUT the turn took too long and was interrupted ├── Cancelled CANCELLED the session was
    cancelled permanently ├── ExecutableNotFound CLI_NOT_FOUND no Claude Code on this machine ├── ProcessFailed INTERNAL
    the CLI died or would not start ├── StateUnavailable INTERNAL the server's state cannot be used ├──
    TranscriptUnreadable INTERNAL a conversation on disk cannot be read now └── UpstreamUnavailable UPSTREAM_UNAVAILABLE
    an MCP server, a machine or an issuer cannot be used now

Each carries a code for programs, a sentence for people (`message`), and `data` for both, as well as the exit code of a
command that ends with it. A class without its own code or exit code inherits its parent's. Exceptions that never reach
a caller, such as an illegal move of a state machine or a malformed entry of a configuration file, are defined where
they are raised and are not part of this tree.
"""

from enum import IntEnum
from typing import Any, ClassVar, Final

ENABLE_BYPASS: Final = "enable_bypass"
"""The `data["remedy"]` of errors that switching on bypassPermissions would avoid."""


class ExitCode(IntEnum):
    """The same in every command; docs/shell.md has the table, and a test compares the two."""

    DONE = 0
    """It was done; the turn completed."""
    FAILED = 1
    """The operation failed or found a problem: a turn that ended with an error, a failed check."""
    MISUSE = 2
    """The command line or a setting is invalid."""
    NOT_FOUND = 3
    """There is no such session, question, server or file, or the name is ambiguous."""
    REFUSED = 4
    """The policy, a limit, another writer or the person refused; or a question was denied because no one could
    answer."""
    UNAVAILABLE = 5
    """No server is running, or an MCP server or Claude Code is unavailable."""
    LIMITED = 6
    """A usage limit of the plan or of the API key ended the turn."""
    INTERRUPTED = 130
    """Ctrl-C; for another signal, 128 plus its number."""


class ClaudeCodeError(Exception):
    """The root of the tree. Raised as itself only for bugs."""

    code: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[ExitCode] = ExitCode.FAILED

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.data = data

    @property
    def report(self) -> dict[str, Any]:
        """The report of the turn that the error ended: session id, output and cost."""
        report = self.data.get("report")
        return report if isinstance(report, dict) else {}


class InvalidArgument(ClaudeCodeError):
    """The request is invalid; `data["field"]` names the offending field, if there is one."""

    code = "INVALID_ARGUMENT"
    exit_code = ExitCode.MISUSE


class QuestionClosed(InvalidArgument):
    """The question is unknown, already answered, expired or withdrawn; `data["closed"]` says which."""


class SessionNotFound(ClaudeCodeError):
    """Neither this server nor the transcripts on disk know the session."""

    code = "SESSION_NOT_FOUND"
    exit_code = ExitCode.NOT_FOUND


class SessionBusy(ClaudeCodeError):
    """Another writer holds the session: a running turn, or another server on this machine."""

    code = "SESSION_BUSY"
    exit_code = ExitCode.REFUSED


class PermissionDenied(ClaudeCodeError):
    """The caller may not do this."""

    code = "PERMISSION_DENIED"
    exit_code = ExitCode.REFUSED


class RecordUnreadable(PermissionDenied):
    """The record of a session cannot be read. Its limits are unknown, so it must not be resumed."""


class LimitReached(ClaudeCodeError):
    """A limit of this server or of the session is used up."""

    code = "LIMIT_REACHED"
    exit_code = ExitCode.REFUSED


class RateLimited(LimitReached):
    """Too many requests or failures in a short time; retry after `retry_after` seconds."""

    code = "RATE_LIMITED"

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message, retry_after=retry_after)
        self.retry_after = retry_after


class TurnTimeout(ClaudeCodeError):
    """The turn took longer than the caller allowed and was interrupted. `report` is the turn so far."""

    code = "TIMEOUT"


class Cancelled(ClaudeCodeError):
    """The session was cancelled; it accepts no more messages. `report` is the turn that was cancelled, if any."""

    code = "CANCELLED"
    exit_code = ExitCode.REFUSED


class ExecutableNotFound(ClaudeCodeError):
    """No Claude Code executable was found; the message says how to install one."""

    code = "CLI_NOT_FOUND"
    exit_code = ExitCode.UNAVAILABLE


class ProcessFailed(ClaudeCodeError):
    """The Claude Code process died, stayed silent or refused to start."""


class StateUnavailable(ClaudeCodeError):
    """The state database cannot be opened, is damaged, or was written by a later version. Nothing of it was changed."""


class TranscriptUnreadable(ClaudeCodeError):
    """A transcript or a directory of transcripts cannot be read now: no free descriptor, a disk failure, or missing
    permissions. Nothing is then known about the session, not even that it does not exist."""


class UpstreamUnavailable(ClaudeCodeError):
    """Something that the call needs is temporarily unavailable.

    An MCP server of the hub, or one that a session requires, is disabled, cannot be reached or needs a sign-in:
    `data["state"]` says which, unless it was connected and did not answer correctly. Or no machine of a fleet responds,
    or the issuer of access tokens or the stored data about callers is unavailable.
    """

    code = "UPSTREAM_UNAVAILABLE"
    exit_code = ExitCode.UNAVAILABLE
