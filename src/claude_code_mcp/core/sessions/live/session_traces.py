"""The traces in which processes and hub calls are started.

A process is started within the trace of its turn, and so is every call to a hub server. OpenTelemetry is not imported
here: if tracing is on, the observer that creates traces (`plugins/telemetry/telemetry.py`) provides the trace of a
session (`SessionTraces`). It is global to the process, like OpenTelemetry itself. A call to a hub server belongs to the
tool use of the turn that makes it. The context must be set for each call, because frames of a process are read in the
context in which it was started, and the request that started it has ended.
"""

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

_TOOL_USE = "claudecode/toolUseId"
"""The key in `_meta` under which Claude Code names the tool use of a `tools/call`."""


class SessionTraces(Protocol):
    """Knows the traces of sessions."""

    def variables(self, session_id: str) -> Mapping[str, str]:
        """The environment variables for a process started for the session; empty if it has no turn."""

    def within(self, session_id: str, tool_use_id: str) -> AbstractContextManager[None]:
        """Context in which new spans are children of the tool use or, without one, of the turn."""


_traces: SessionTraces | None = None


def use_traces(traces: SessionTraces | None) -> None:
    """Set the provider of traces; None for none."""
    global _traces  # noqa: PLW0603 - one for a process, as its provider of traces
    _traces = traces


def is_traced() -> bool:
    return _traces is not None


def trace_variables(session_id: str) -> Mapping[str, str]:
    """The environment variables with the trace of a session's turn, for a process that is started for it."""
    return {} if _traces is None else _traces.variables(session_id)


def within_turn(session_id: str, params: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Context for forwarding a message with these parameters to a hub server."""
    if _traces is None:
        return contextlib.nullcontext()
    meta = params.get("_meta")
    return _traces.within(session_id, str(meta.get(_TOOL_USE)) if isinstance(meta, Mapping) else "")
