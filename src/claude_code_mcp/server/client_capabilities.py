"""The capabilities that the client of a request has declared."""

from collections.abc import Mapping
from typing import Any

from ..startup.shared.handshake import PERSON
from .sdk import Context, is_modern

TASKS_EXTENSION = "io.modelcontextprotocol/tasks"


def can_be_asked(context: Context) -> bool:
    """Whether the client shows forms to a person."""
    capabilities = context.session.client_capabilities
    elicitation = capabilities.elicitation if capabilities is not None else None
    if elicitation is None:
        return False
    return elicitation.form is not None or elicitation.url is None


def can_open_addresses(context: Context) -> bool:
    """Whether the client can open a URL for a person."""
    capabilities = context.session.client_capabilities
    elicitation = capabilities.elicitation if capabilities is not None else None
    return elicitation is not None and elicitation.url is not None


def can_sample(context: Context) -> bool:
    """Whether the client lets servers ask its model."""
    capabilities = context.session.client_capabilities
    return capabilities is not None and capabilities.sampling is not None


def declares_tasks(context: Context) -> bool:
    """Whether this request's client accepts tasks. Only requests of 2026-07-28 can declare this."""
    capabilities = context.session.client_capabilities
    extensions = capabilities.extensions if capabilities is not None else None
    return is_modern(context.protocol_version) and TASKS_EXTENSION in (extensions or {})


def declares_person(context: Context) -> bool:
    """Whether the client declares that a person uses it, without a model."""
    capabilities = context.session.client_capabilities
    return capabilities is not None and PERSON in (capabilities.experimental or {})


def without_person(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """The capabilities without the claim that a person uses the client at this machine, which is not trusted over
    HTTP."""
    experimental = {key: value for key, value in (capabilities.get("experimental") or {}).items() if key != PERSON}
    rest = {key: value for key, value in capabilities.items() if key != "experimental"}
    return {**rest, **({"experimental": experimental} if experimental else {})}
