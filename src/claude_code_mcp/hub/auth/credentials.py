"""What is kept between runs about signing in: credentials, and which servers are known to need a sign-in.

Credentials are kept in the system's keyring, or in files that only their owner can read. The memory of servers that
need a sign-in is a file that several processes share.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken, ProtectedResourceMetadata
from pydantic import BaseModel, ValidationError

from ...private_files import private_directory
from ...state.documents import Documents
from .locks import file_lock

log = logging.getLogger(__name__)

REMEMBERED = 15 * 60.0
"""Seconds for which a server that wanted a sign-in is not asked again."""
LOCK_TIMEOUT = 60.0
"""Seconds to wait while another process renews the same tokens, which it does not do for as long as that."""
_SERVICE = "claude-code-mcp"


class Vault(Protocol):
    """Keeps secrets by key; `load` returns None for a key that is not there."""

    def lock(self, key: str) -> AbstractAsyncContextManager[None]:
        """Whoever is within this context is the only one, in all processes, for this key. TimeoutError if somebody else
        is for too long."""

    async def load(self, key: str) -> str | None: ...

    async def save(self, key: str, value: str) -> None: ...

    async def delete(self, key: str) -> None: ...


class FileVault:
    """A directory with one file of mode 0600 for each key."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._locks = directory.with_name(f"{directory.name}-locks")

    def _file(self, key: str, ending: str = "json") -> Path:
        return self._directory / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.{ending}"

    def lock(self, key: str) -> AbstractAsyncContextManager[None]:
        return file_lock(self._locks / self._file(key, "lock").name, LOCK_TIMEOUT)

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

    What the fallback holds moves to the keyring with the next save. Each principal has secrets of its own.
    """

    def __init__(self, fallback: Vault, principal: str = "") -> None:
        self._fallback = fallback
        self._service = f"{_SERVICE} for {principal}" if principal else _SERVICE

    def lock(self, key: str) -> AbstractAsyncContextManager[None]:
        return self._fallback.lock(key)

    async def load(self, key: str) -> str | None:
        secret = await asyncio.to_thread(_keyring, self._service, "get_password", key)
        return secret if isinstance(secret, str) else await self._fallback.load(key)

    async def save(self, key: str, value: str) -> None:
        if await asyncio.to_thread(_keyring, self._service, "set_password", key, value) is False:
            await self._fallback.save(key, value)
        else:
            await self._fallback.delete(key)

    async def delete(self, key: str) -> None:
        await asyncio.to_thread(_keyring, self._service, "delete_password", key)
        await self._fallback.delete(key)


def _keyring(service: str, action: str, *arguments: str) -> str | bool | None:
    """Calls the keyring and returns its answer; False where it does not work."""
    import keyring  # noqa: PLC0415 - looks for its backends when imported, which takes a while
    import keyring.errors  # noqa: PLC0415

    try:
        result: str | None = getattr(keyring, action)(service, *arguments)
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


def digest_of(token: str | None) -> str:
    """Differs when the token does, and reveals nothing of it."""
    return hashlib.sha256((token or "").encode()).hexdigest()[:16]


class SignInElsewhere(Protocol):
    """The sign-in of another program to the same server."""

    def lock(self) -> AbstractAsyncContextManager[None]:
        """The lock under which that program renews its tokens. Raises OSError, and TimeoutError."""

    async def load(self) -> Credentials | None:
        """What it has stored; None if it is not signed in, or that cannot be read."""

    async def save(self, tokens: OAuthToken, expires_at: float | None) -> None:
        """Gives it the tokens that took the place of its own. Raises OSError."""


class CredentialStorage:
    """The credentials for one server, with the methods that the SDK's providers call. Damaged ones count as none.

    Without tokens of our own those of the sign-in `elsewhere` are used, and renewed there: a refresh token that was
    used up must not stay behind with a program that will use it again.
    """

    def __init__(self, vault: Vault, key: str, elsewhere: SignInElsewhere | None = None) -> None:
        self._vault = vault
        self._key = key
        self._elsewhere = elsewhere

    @contextlib.asynccontextmanager
    async def lock(self) -> AsyncIterator[None]:
        """Whoever is within this context is the only one, in all processes, who renews these tokens. TimeoutError if
        somebody else does for too long, OSError where there can be no lock."""
        async with contextlib.AsyncExitStack() as locks:
            await locks.enter_async_context(self._vault.lock(self._key))
            if self._elsewhere is not None and await self._borrowed() is not None:
                await locks.enter_async_context(self._elsewhere.lock())
            yield

    async def load(self) -> Credentials:
        return await self._borrowed() or await self._own()

    async def _own(self) -> Credentials:
        stored = await self._vault.load(self._key)
        if stored is not None:
            with contextlib.suppress(ValidationError):
                return Credentials.model_validate_json(stored)
        return Credentials()

    async def _borrowed(self) -> Credentials | None:
        """The credentials of the other program, where we have no tokens ourselves."""
        if self._elsewhere is None or (await self._own()).tokens is not None:
            return None
        return await self._elsewhere.load()

    async def update(self, **changes: object) -> None:
        """Changes what we have stored ourselves."""
        credentials = (await self._own()).model_copy(update=changes)
        await self._vault.save(self._key, credentials.model_dump_json(exclude_none=True))

    async def delete(self) -> None:
        """Forgets what we have stored ourselves."""
        await self._vault.delete(self._key)

    async def digest(self) -> str:
        """Of the access token that is stored."""
        tokens = (await self.load()).tokens
        return digest_of(tokens.access_token if tokens is not None else None)

    async def get_tokens(self) -> OAuthToken | None:
        """The tokens; `expires_in` is the time that is left, not the time they were issued for."""
        credentials = await self.load()
        tokens, expires_at = credentials.tokens, credentials.expires_at
        if tokens is None or expires_at is None:
            return tokens
        return tokens.model_copy(update={"expires_in": int(expires_at - time.time())})

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Stores tokens where those came from that they take the place of."""
        expires_at = None if tokens.expires_in is None else time.time() + tokens.expires_in
        borrowed = await self._borrowed()
        if borrowed is None or not await self._give_back(tokens, expires_at):
            await self.update(**{**dict(borrowed or {}), "tokens": tokens, "expires_at": expires_at})

    async def _give_back(self, tokens: OAuthToken, expires_at: float | None) -> bool:
        """Whether the other program has its new tokens; otherwise they must be kept here, or nobody would have any."""
        assert self._elsewhere is not None
        try:
            await self._elsewhere.save(tokens, expires_at)
        except OSError as error:
            log.warning("renewed tokens of another program are kept here: %s", type(error).__name__)
            return False
        return True

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return (await self.load()).client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        await self.update(client=client_info)


class NeedsAuthMemory:
    """Which servers wanted a sign-in, by fingerprint, for all processes that share the state.

    It is remembered together with the digest of the tokens that were of no use: where there are others since, from
    whatever process or program, it no longer counts. What cannot be read counts as nothing, for that look alone.
    """

    def __init__(self, documents: Documents, clock: Callable[[], float] = time.time) -> None:
        self._documents = documents
        self._clock = clock

    async def remembered(self, key: str) -> str | None:
        """The digest of the tokens with which a sign-in was wanted; None if that is not known, or too long ago."""
        try:
            entry = await asyncio.to_thread(self._documents.read, key)
        except OSError as error:
            log.warning("whether a server needs a sign-in cannot be read: %s", error)
            return None
        if entry is None or not 0 <= self._clock() - entry["at"] < REMEMBERED:
            return None
        return str(entry["digest"])

    async def remember(self, key: str, digest: str) -> None:
        await asyncio.to_thread(self._documents.write, key, {"at": self._clock(), "digest": digest})

    async def forget(self, key: str) -> None:
        if await self.remembered(key) is not None:
            await asyncio.to_thread(self._documents.update, key, lambda _: None)
