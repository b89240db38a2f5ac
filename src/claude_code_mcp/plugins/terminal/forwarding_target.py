"""The server to which a person lets this machine forward the questions of terminals.

Stored in a private directory below the state directory, never in a variable: sessions inherit variables. Running
servers detect a change at once.
"""

import json
import os
import shutil
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ...core.errors import InvalidArgument
from ...core.private_files import private_directory, read_secret, replace_file

MCP_PATH = "/mcp"
_MAX_FILE = 64 << 10


@dataclass(frozen=True, slots=True)
class ForwardingTarget:
    """A server that shows the terminals of this machine too."""

    url: str
    """Without a path."""
    token: str | None = None
    """None if its tokens come from a sign-in."""
    client: str = ""
    """The name of this state directory among those that forward there."""

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc


class ForwardingPlace:
    """Where the target is stored."""

    def __init__(self, state_dir: Path) -> None:
        self.directory = state_dir / "terminal-forwarding"
        self.file = self.directory / "target.json"
        self.lock = self.directory / "lock"
        self.credentials = self.directory / "credentials"

    def read(self) -> ForwardingTarget | None:
        """None if nothing is forwarded. Raises OSError or ValueError if the file cannot be read. Blocks on the disk."""
        try:
            stored = json.loads(read_secret(self.file, _MAX_FILE))
        except FileNotFoundError:
            return None
        return ForwardingTarget(str(stored["url"]), stored.get("token"), str(stored["client"]))

    def write(self, target: ForwardingTarget) -> None:
        private_directory(self.directory)
        replace_file(self.file, json.dumps(asdict(target)).encode())

    def remove(self) -> bool:
        """Stop forwarding and delete the sign-in. Returns whether a target was set."""
        was_there = self.file.exists()
        self.file.unlink(missing_ok=True)
        shutil.rmtree(self.credentials, ignore_errors=True)
        return was_there


def new_target(url: str, token: str | None) -> ForwardingTarget:
    """Raises InvalidArgument for an unusable address, or for one that would expose a token."""
    parts = urlsplit(url if "://" in url else f"https://{url}")
    try:
        is_valid = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and "@" not in parts.netloc
        )
    except ValueError:
        is_valid = False
    if not is_valid or parts.path.rstrip("/") not in ("", MCP_PATH) or parts.query or parts.fragment:
        raise InvalidArgument(f"{url!r} is not the address of a server, such as https://team.example.com.")
    if parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
        raise InvalidArgument("Questions are forwarded only over https, because others could read and answer them.")
    if token is not None and (not token or not token.isascii() or not token.isprintable() or " " in token):
        raise InvalidArgument("The token contains characters that are not allowed.")
    return ForwardingTarget(f"{parts.scheme}://{parts.netloc}", token, uuid.uuid4().hex)


def machine_name() -> str:
    """This machine's name at the target."""
    return os.uname().nodename[:200]
