"""The traces that processes and calls of the hub are started in.

A process is started within the trace that its turn is in, and so is every call to a server of the hub. Nothing of
OpenTelemetry is imported here: where traces are on, the observer that makes them (`plugins/telemetry/telemetry.py`)
says which trace a session is in (`SessionTraces`), and otherwise nobody is asked. There is one of these for a process,
as OpenTelemetry has it. What a server of the hub is called with belongs to the tool of the turn that calls it. That
must be said for each call: frames of a process are read in the context in which it was started, whose request is long
over.
"""

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

_TOOL_USE = "claudecode/toolUseId"
"""Where Claude Code names the tool use that a `tools/call` belongs to, in its `_meta`."""


class SessionTraces(Protocol):
    """Knows the traces of sessions."""

    def variables(self, session_id: str) -> Mapping[str, str]:
        """What a process that is started for the session has in its environment; nothing if it has no turn."""

    def within(self, session_id: str, tool_use_id: str) -> AbstractContextManager[None]:
        """What begins in this context is below the tool of the turn or, without one, below the turn."""


_traces: SessionTraces | None = None


def use_traces(traces: SessionTraces | None) -> None:
    """From now on these are asked; None for nobody."""
    global _traces  # noqa: PLW0603 - one for a process, as its provider of traces
    _traces = traces


def is_traced() -> bool:
    return _traces is not None


def trace_variables(session_id: str) -> Mapping[str, str]:
    """The trace of a session's turn, for the process that is started for it."""
    return {} if _traces is None else _traces.variables(session_id)


def within_turn(session_id: str, params: Mapping[str, Any]) -> AbstractContextManager[None]:
    """A context for passing a message on to a server, of which these are the parameters."""
    if _traces is None:
        return contextlib.nullcontext()
    meta = params.get("_meta")
    return _traces.within(session_id, str(meta.get(_TOOL_USE)) if isinstance(meta, Mapping) else "")
