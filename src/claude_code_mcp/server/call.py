"""One tool call as the tools see it: who calls, through which connection, and what a retried call brought back."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from ..service import Service
from .dialogs import Dialogs

Context = ServerRequestContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """The surroundings of one call."""

    service: Service
    dialogs: Dialogs
    principal: str
    context: Context
    responses: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)

    @property
    def resumed_session(self) -> str | None:
        """The session of an earlier round of this same call; what that round did must not be done again."""
        session_id = self.state.get("session")
        return session_id if isinstance(session_id, str) else None

    @property
    def resumed_cursor(self) -> int | None:
        """Where the report of the earlier round was to begin."""
        since = self.state.get("since")
        return since if isinstance(since, int) else None

    @property
    def returns_questions(self) -> bool:
        """Whether questions go back as the result of the call, which the client then repeats with answers."""
        modern = self.context.protocol_version in MODERN_PROTOCOL_VERSIONS
        return modern and can_be_asked(self.context)


def can_be_asked(context: Context) -> bool:
    """Whether the client shows forms to a person."""
    capabilities = context.session.client_capabilities
    elicitation = capabilities.elicitation if capabilities is not None else None
    if elicitation is None:
        return False
    return elicitation.form is not None or elicitation.url is None


def read_state(params: types.CallToolRequestParams) -> Mapping[str, Any]:
    """What an earlier round of this call left with the client. It was sealed, so it is ours."""
    return dict(json.loads(params.request_state)) if params.request_state else {}
