"""The address at which a phone reaches the console of the shared server.

`web --tunnel` and `web --lan` serve the console there while they run. They write the address to a file and hold a lock
on another file. The server accepts requests to the address and uses it in links while the lock is held, so the address
of a killed command also becomes invalid.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from ...core.errors import InvalidArgument
from ...core.private_files import private_directory, read_regular, replace_file

HINT = """\
A phone cannot open this link: it leads to this machine only. For a phone, run one of
  claude-code-mcp web --lan                  over the local network
  claude-code-mcp web --tunnel tailscale     to the devices of your tailnet
  claude-code-mcp web --tunnel cloudflared   over the internet"""
_MAX_LENGTH = 300
_LOCK_SECONDS = 2.0


class PhoneAddress:
    """The file and the lock for the console on one port."""

    def __init__(self, state_dir: Path, port: int) -> None:
        self._file = state_dir / "web" / f"phone-{port}"
        self._lock = self._file.with_suffix(".lock")

    def read(self) -> str | None:
        """The address, without a trailing slash, while a command serves it; else None. Blocks on the disk; OSError."""
        from filelock import FileLock, Timeout  # noqa: PLC0415 - takes a while, and most servers need none

        try:
            address = read_regular(self._file, _MAX_LENGTH).decode("ascii", "replace").strip()
        except FileNotFoundError:
            return None
        try:
            with FileLock(self._lock, timeout=0):
                return None  # the command was killed
        except Timeout:
            return address if is_public(address) else None

    @contextmanager
    def held(self) -> Iterator["PhoneAddress"]:
        """Holds the lock and removes the address at the end. InvalidArgument if another command serves this console."""
        from filelock import FileLock, Timeout  # noqa: PLC0415

        private_directory(self._file.parent)
        lock = FileLock(self._lock, mode=0o600)
        try:
            # The server holds the lock briefly whenever it reads the address.
            lock.acquire(timeout=_LOCK_SECONDS)
        except Timeout:
            raise InvalidArgument(
                "Another `web --tunnel` or `web --lan` serves this console. Stop it first, or run `claude-code-mcp "
                "web` for one more link to its address."
            ) from None
        try:
            self._file.unlink(missing_ok=True)
            yield self
        finally:
            self._file.unlink(missing_ok=True)
            lock.release()

    def write(self, address: str) -> None:
        replace_file(self._file, address.encode("ascii"))


def is_public(address: str) -> bool:
    """Whether this is the HTTPS origin of another name than this machine's own."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        return False
    named = parts.hostname is not None and not is_only_here(address)
    return parts.scheme == "https" and named and port != 0 and address == f"https://{parts.netloc}"


def is_only_here(address: str) -> bool:
    """Whether a link leads to this machine only."""
    host = urlsplit(address).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")
