"""Where sessions work that name no directory of their own."""

import os

from ..config import Settings
from ..errors import InvalidArgument


def own_directory() -> str:
    """Where this server works; InvalidArgument if that directory is gone."""
    try:
        return os.getcwd()
    except OSError:
        raise InvalidArgument(
            "cwd: the directory that this server was started in no longer exists. Name another one, or start the "
            "server elsewhere.",
            field="cwd",
        ) from None


def default_directory(settings: Settings) -> str:
    """Where sessions work that name no directory."""
    named = settings.default_cwd
    if named is not None and os.path.isabs(named):
        return os.path.abspath(named)
    return os.path.abspath(os.path.join(own_directory(), named or ""))
