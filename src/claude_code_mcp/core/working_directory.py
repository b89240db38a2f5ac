"""The directory that a session works in if its caller names none."""

import os

from .config import Settings
from .errors import InvalidArgument


def own_directory() -> str:
    """The working directory of this server; InvalidArgument if that directory is gone."""
    try:
        return os.getcwd()
    except OSError:
        raise InvalidArgument(
            "cwd: the directory that this server was started in no longer exists. Pass another one, or start the "
            "server elsewhere.",
            field="cwd",
        ) from None


def default_directory(settings: Settings, client: str | None = None) -> str:
    """The working directory of sessions that name none; `client` is the directory of a client that is elsewhere."""
    configured = settings.default_cwd
    if configured is not None and os.path.isabs(configured):
        return os.path.abspath(configured)
    return os.path.abspath(os.path.join(client or own_directory(), configured or ""))
