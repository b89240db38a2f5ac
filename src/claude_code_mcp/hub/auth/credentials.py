"""What is kept between runs about signing in: credentials, and which servers are known to need a sign-in.

Credentials are kept in the system's keyring, or in files that only their owner can read. The memory of servers that
need a sign-in is a file that several processes share.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock
from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken, ProtectedResourceMetadata
from pydantic import BaseModel, ValidationError

from ...private_files import FILE, open_private, private_directory

log = logging.getLogger(__name__)

REMEMBERED = 15 * 60.0
"""Seconds for which a server that wanted a sign-in is not asked again."""
_SERVICE = "claude-code-mcp"


class Vault(Protocol):
    """Keeps secrets by key; `load` returns None for a key that is not there."""

    async def load(self, key: str) -> str | None: ...

    async def save(self, key: str, value: str) -> None: ...

    async def delete(self, key: str) -> None: ...


class FileVault:
    """A directory with one file of mode 0600 for each key."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def _file(self, key: str) -> Path:
        return self._directory / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"

    async def load(self, key: str) -> str | None:
        try:
            return await asyncio.to_thread(self._file(key).read_text, "utf-8")
        except FileNotFoundError:
            return None

    async def save(self, key: str, value: str) -> None:
        await asyncio.to_thread(self._write, self._file(key), value)

    def _write(self, file: Path, value: str) -> None:
        private_directory(self._directory)
        descriptor, new = tempfile.mkstemp(dir=self._directory)  # born with mode 0600
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(value)
        os.replace(new, file)

    async def delete(self, key: str) -> None:
        await asyncio.to_thread(self._file(key).unlink, missing_ok=True)


class KeyringVault:
    """The system's keyring; the fallback is used where there is no keyring or it refuses.

    What the fallback holds moves to the keyring with the next save.
    """

    def __init__(self, fallback: Vault) -> None:
        self._fallback = fallback

    async def load(self, key: str) -> str | None:
        secret = await asyncio.to_thread(_keyring, "get_password", key)
        return secret if isinstance(secret, str) else await self._fallback.load(key)

    async def save(self, key: str, value: str) -> None:
        if await asyncio.to_thread(_keyring, "set_password", key, value) is False:
            await self._fallback.save(key, value)
        else:
            await self._fallback.delete(key)

    async def delete(self, key: str) -> None:
        await asyncio.to_thread(_keyring, "delete_password", key)
        await self._fallback.delete(key)


def _keyring(action: str, *arguments: str) -> str | bool | None:
    """Calls the keyring and returns its answer; False where it does not work."""
    import keyring  # noqa: PLC0415 - looks for its backends when imported, which takes a while
    import keyring.errors  # noqa: PLC0415

    try:
        result: str | None = getattr(keyring, action)(_SERVICE, *arguments)
    except keyring.errors.PasswordDeleteError:
        return None
    except Exception as error:  # backends raise whatever their system raises
        log.debug("the keyring does not work: %s", type(error).__name__)
        return False
    return result


class Credentials(BaseModel):
    """All that must survive a restart so that a token can be used, and refreshed at its authorization server."""

    tokens: OAuthToken | None = None
    expires_at: float | None = None
    client: OAuthClientInformationFull | None = None
    metadata: OAuthMetadata | None = None
    resource: ProtectedResourceMetadata | None = None
    authorization_server: str | None = None
    wanted_scope: str | None = None
    """The scope that the server asked for beyond what was granted; the next sign-in asks for it."""


class CredentialStorage:
    """The credentials for one server, with the methods that the SDK's providers call. Damaged ones count as none."""

    def __init__(self, vault: Vault, key: str) -> None:
        self._vault = vault
        self._key = key

    async def load(self) -> Credentials:
        stored = await self._vault.load(self._key)
        if stored is not None:
            with contextlib.suppress(ValidationError):
                return Credentials.model_validate_json(stored)
        return Credentials()

    async def update(self, **changes: object) -> None:
        credentials = (await self.load()).model_copy(update=changes)
        await self._vault.save(self._key, credentials.model_dump_json(exclude_none=True))

    async def delete(self) -> None:
        await self._vault.delete(self._key)

    async def get_tokens(self) -> OAuthToken | None:
        """The tokens; `expires_in` is the time that is left, not the time they were issued for."""
        credentials = await self.load()
        tokens, expires_at = credentials.tokens, credentials.expires_at
        if tokens is None or expires_at is None:
            return tokens
        return tokens.model_copy(update={"expires_in": int(expires_at - time.time())})

    async def set_tokens(self, tokens: OAuthToken) -> None:
        expires_at = None if tokens.expires_in is None else time.time() + tokens.expires_in
        await self.update(tokens=tokens, expires_at=expires_at)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return (await self.load()).client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        await self.update(client=client_info)


class NeedsAuthMemory:
    """Which servers wanted a sign-in, by fingerprint, in a file that several processes may share.

    Writers take turns by a lock, and replace the file as a whole. A damaged file counts as an empty one.
    """

    def __init__(self, file: Path, clock: Callable[[], float] = time.time) -> None:
        self._file = file
        self._clock = clock
        self._write_lock = asyncio.Lock()

    async def remembers(self, key: str) -> bool:
        return key in await asyncio.to_thread(self._current)

    async def remember(self, key: str) -> None:
        await self._change(lambda entries: entries.update({key: self._clock()}))

    async def forget(self, key: str) -> None:
        if await self.remembers(key):
            await self._change(lambda entries: entries.pop(key, None))

    async def _change(self, change: Callable[[dict[str, float]], Any]) -> None:
        async with self._write_lock:
            await asyncio.to_thread(self._rewrite, change)

    def _rewrite(self, change: Callable[[dict[str, float]], Any]) -> None:
        private_directory(self._file.parent)
        with FileLock(f"{self._file}.lock", mode=FILE):
            entries = self._current()
            change(entries)
            new = self._file.with_suffix(".new")
            with open(open_private(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w", encoding="utf-8") as file:
                file.write(json.dumps(entries))
            os.replace(new, self._file)

    def _current(self) -> dict[str, float]:
        try:
            entries = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        now = self._clock()
        return {key: at for key, at in entries.items() if 0 <= now - at < REMEMBERED}
