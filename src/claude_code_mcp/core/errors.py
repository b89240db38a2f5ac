"""Every refusal and failure that a caller can meet.

    ClaudeCodeError                INTERNAL
    ├── InvalidArgument            INVALID_ARGUMENT      the request itself is wrong
    │   └── QuestionClosed                               the question is unknown, answered, expired or withdrawn
    ├── SessionNotFound            SESSION_NOT_FOUND     no such session, in memory or on disk
    ├── SessionBusy                SESSION_BUSY          another writer holds the session
    ├── PermissionDenied           PERMISSION_DENIED     the policy or the owner says no
    │   └── RecordUnreadable                             what the session may do is no longer known
    ├── LimitReached               LIMIT_REACHED         sessions, budget
    │   └── RateLimited            RATE_LIMITED          too much within a while; later it works
    ├── TurnTimeout                TIMEOUT               the turn took too long and was interrupted
    ├── Cancelled                  CANCELLED             the session was cancelled for good
    ├── ExecutableNotFound         CLI_NOT_FOUND         no Claude Code on this machine
    ├── ProcessFailed              INTERNAL              the CLI died or would not start
    ├── StateUnavailable           INTERNAL              what the server remembers cannot be used
    ├── TranscriptUnreadable       INTERNAL              a conversation on disk cannot be read now
    └── UpstreamUnavailable        UPSTREAM_UNAVAILABLE  an MCP server, a machine or an issuer cannot be used now

Each carries a code for programs, a sentence for people (`message`), and `data` for both; and the exit code of a command
that ends with it. A class without a code or an exit code of its own has that of its parent. Exceptions that never reach
a caller, such as an illegal move of a state machine or a malformed entry of a configuration file, are defined where
they are raised and are not part of this tree.
"""

from enum import IntEnum
from typing import Any, ClassVar, Final

ENABLE_BYPASS: Final = "enable_bypass"
"""The `data["remedy"]` of errors which switching bypassPermissions on would avoid."""


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
    LIMITED = 6
    """A usage limit of the plan or of the API key ended the turn."""
    INTERRUPTED = 130
    """Ctrl-C; another signal is 128 and its number."""


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
        """The turn that the error ended, as a caller reads it: the id of the session, its output and its cost."""
        report = self.data.get("report")
        return report if isinstance(report, dict) else {}


class InvalidArgument(ClaudeCodeError):
    """The request can never work as it is; `data["field"]` names the culprit where there is one."""

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
    """The record of a session of ours cannot be read. Its limits are not known, so it must not be resumed."""


class LimitReached(ClaudeCodeError):
    """A limit of this server or of the session is used up."""

    code = "LIMIT_REACHED"
    exit_code = ExitCode.REFUSED


class RateLimited(LimitReached):
    """Too many requests or failures within a while; after `retry_after` seconds it is worth another try."""

    code = "RATE_LIMITED"

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message, retry_after=retry_after)
        self.retry_after = retry_after


class TurnTimeout(ClaudeCodeError):
    """The turn took longer than the caller allowed and was interrupted. `report` is the turn so far."""

    code = "TIMEOUT"


class Cancelled(ClaudeCodeError):
    """The session was cancelled; it takes no more messages. `report` is the turn that was cancelled, if any."""

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
    """A transcript, or a directory of them, cannot be read now: no descriptor is free, the disk fails, or it is not
    ours to read. Nothing is known of the session then, not even that there is none."""


class UpstreamUnavailable(ClaudeCodeError):
    """Something that this server needs for the call cannot be used now; later it may work.

    An MCP server of the hub, or one that a session requires, is disabled, cannot be reached or needs a sign-in:
    `data["state"]` says which, unless it was connected and did not answer, or not properly. Or no machine of a fleet is
    there or answers; or the issuer of access tokens, or what is remembered of callers, cannot be asked.
    """

    code = "UPSTREAM_UNAVAILABLE"
    exit_code = ExitCode.UNAVAILABLE
