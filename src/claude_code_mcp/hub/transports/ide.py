"""What an IDE extension wants to be shown: the token that it wrote into its lock file."""

import json
from pathlib import Path
from urllib.parse import urlsplit

from ..configuration import IdeConfig

HEADER = "X-Claude-Code-Ide-Authorization"


def ide_headers(config: IdeConfig, claude_directory: Path) -> dict[str, str]:
    """The headers for an IDE: those configured, and the token."""
    token = config.auth_token or _token_of_lock_file(config.url, claude_directory)
    return {**config.headers, HEADER: token} if token else dict(config.headers)


def _token_of_lock_file(url: str, claude_directory: Path) -> str | None:
    port = urlsplit(url).port
    try:
        lock = json.loads((claude_directory / "ide" / f"{port}.lock").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    token = lock.get("authToken") if isinstance(lock, dict) else None
    return token if isinstance(token, str) else None
