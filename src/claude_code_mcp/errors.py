"""Every refusal and failure that a caller can meet.

    ClaudeCodeError                INTERNAL
    ├── InvalidArgument            INVALID_ARGUMENT     the request itself is wrong
    ├── SessionNotFound            SESSION_NOT_FOUND    no such session, in memory or on disk
    ├── SessionBusy                SESSION_BUSY         somebody else is writing to it
    ├── PermissionDenied           PERMISSION_DENIED    the policy or the owner says no
    ├── QuestionClosed             INVALID_ARGUMENT     unknown, answered, expired or withdrawn
    ├── LimitReached               LIMIT_REACHED        sessions, budget
    ├── TurnTimeout                TIMEOUT
    ├── Cancelled                  CANCELLED            the session was cancelled for good
    ├── ExecutableNotFound         CLI_NOT_FOUND
    ├── ProcessFailed              INTERNAL             the CLI died or would not start
    └── UpstreamUnavailable        UPSTREAM_UNAVAILABLE an MCP server cannot be used now

Each carries a code for programs, a sentence for people, and data for both.
"""

from typing import Any, ClassVar


class ClaudeCodeError(Exception):
    """The root of the tree; only bugs are raised as this class itself."""

    code: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.data = data


class InvalidArgument(ClaudeCodeError):
    """The request can never work as it is; `data["field"]` names the culprit where there is one."""

    code = "INVALID_ARGUMENT"


class SessionNotFound(ClaudeCodeError):
    """Neither this server nor the transcripts on disk know the session."""

    code = "SESSION_NOT_FOUND"


class SessionBusy(ClaudeCodeError):
    """Another writer holds the session: a running turn, or another server on this machine."""

    code = "SESSION_BUSY"


class PermissionDenied(ClaudeCodeError):
    """The caller may not do this."""

    code = "PERMISSION_DENIED"


class QuestionClosed(InvalidArgument):
    """The question is unknown, already answered, expired or withdrawn; `data["closed"]` says which."""


class LimitReached(ClaudeCodeError):
    """A limit of this server or of the session is used up."""

    code = "LIMIT_REACHED"


class TurnTimeout(ClaudeCodeError):
    """The turn took longer than the caller allowed and was interrupted; `report` is what there is of it, as a caller
    reads it: the session's id, its output so far and what it cost."""

    code = "TIMEOUT"

    @property
    def report(self) -> dict[str, Any]:
        told = self.data.get("report")
        return told if isinstance(told, dict) else {}


class Cancelled(ClaudeCodeError):
    """The session was cancelled; it takes no more messages."""

    code = "CANCELLED"


class ExecutableNotFound(ClaudeCodeError):
    """No Claude Code executable was found; the message says how to install one."""

    code = "CLI_NOT_FOUND"


class ProcessFailed(ClaudeCodeError):
    """The Claude Code process died, stayed silent or refused to start."""


class UpstreamUnavailable(ClaudeCodeError):
    """An MCP server of the hub, or one that a session insists on, is disabled, cannot be reached, or wants somebody to
    sign in; `data["state"]` says."""

    code = "UPSTREAM_UNAVAILABLE"
