"""The form of a session id."""

import re

_SESSION_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def is_session_id(text: str) -> bool:
    """Whether this has the form of a session id. Nothing else may be made part of a path."""
    return _SESSION_ID.fullmatch(text) is not None
