"""Stored sign-in data: tokens, registrations, and which servers need a sign-in.

Credentials are stored in the system's keyring or in private files. Which servers need a sign-in is stored in a file
that several processes share.
"""

import asyncio
import contextlib
import errno
import hashlib
import importlib.util
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mcp.client.auth import OAuthFlowError
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import BaseModel, ValidationError

from ...core.errors import StateUnavailable
from ...core.installation import extra_command
from ...core.private_files import private_directory, replace_file
from ...core.state.documents import Documents
from .file_locks import file_lock

if TYPE_CHECKING:
    from .claude_sign_in import ClaudeSignIn

log = logging.getLogger(__name__)

REMEMBERED = 15 * 60.0
"""Seconds for which a server that required a sign-in is not tried again."""
LOCK_TIMEOUT = 60.0
"""Seconds to wait while another process renews the same tokens; longer than any renewal."""
_SERVICE = "claude-code-mcp"
_KEYRING_REMEDY = "unlock it, or set PYTHON_KEYRING_BACKEND=keyring.backends.fail.Keyring to keep tokens in files"
_STATE_FAILURES = (OSError, StateUnavailable)


class Vault(Protocol):
    """Stores secrets by key; `load` returns None for a missing key. All methods raise OSError on failure: whether there
    is a secret is then unknown."""

    def lock(self, key: str) -> AbstractAsyncContextManager[None]:
        """Context that holds an exclusive lock on this key across all processes. TimeoutError if another holder takes
        too long."""

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
        replace_file(file, value.encode())

    async def delete(self, key: str) -> None:
        await asyncio.to_thread(self._file(key).unlink, missing_ok=True)


class KeyringVault:
    """The system's keyring; the fallback stores a secret if there is no keyring or it refuses.

    Secrets in the fallback take precedence, and move to the keyring with the next successful save. A failing keyring,
    for example a locked one, may hold anything: loading or deleting a secret that only it could have is an error. Each
    principal has separate secrets.
    """

    def __init__(self, fallback: Vault, principal: str = "") -> None:
        self._fallback = fallback
        self._service = f"{_SERVICE} for {principal}" if principal else _SERVICE

    def lock(self, key: str) -> AbstractAsyncContextManager[None]:
        return self._fallback.lock(key)

    async def load(self, key: str) -> str | None:
        # The fallback first: it was written after the keyring, or it would have been removed.
        secret = await self._fallback.load(key)
        if secret is None:
            answer = await asyncio.to_thread(_keyring, self._service, "get_password", key)
            secret = answer if isinstance(answer, str) else None
        return secret

    async def save(self, key: str, value: str) -> None:
        try:
            is_kept = await asyncio.to_thread(_keyring, self._service, "set_password", key, value) is not False
        except OSError as error:
            log.info("a secret is stored in a file: %s", error.strerror)
            is_kept = False
        if not is_kept and importlib.util.find_spec("keyring") is None:
            log.info("a secret is stored in a file; to use the system's keyring run `%s`", extra_command("keyring"))
        if is_kept:
            await self._fallback.delete(key)
        else:
            await self._fallback.save(key, value)

    async def delete(self, key: str) -> None:
        await self._fallback.delete(key)
        await asyncio.to_thread(_keyring, self._service, "delete_password", key)


def _keyring(service: str, action: str, *arguments: str) -> str | bool | None:
    """Call the keyring and return its answer; False if the system has no keyring or the extra `keyring` is not
    installed. OSError if it fails."""
    try:
        import keyring  # noqa: PLC0415 - looks for its backends when imported, which takes a while
        import keyring.errors  # noqa: PLC0415
    except ModuleNotFoundError:
        return False

    try:
        result: str | None = getattr(keyring, action)(service, *arguments)
    except keyring.errors.PasswordDeleteError:
        return None
    except keyring.errors.NoKeyringError:
        return False
    except Exception as error:  # backends raise arbitrary exceptions
        reason = f"the system's keyring does not work ({type(error).__name__}); {_KEYRING_REMEDY}"
        raise OSError(errno.EIO, reason) from error
    return result


class Credentials(BaseModel):
    """Everything that must survive a restart to use a token and refresh it at its authorization server."""

    tokens: OAuthToken | None = None
    expires_at: float | None = None
    client: OAuthClientInformationFull | None = None
    metadata: OAuthMetadata | None = None
    resource: ProtectedResourceMetadata | None = None
    authorization_server: str | None = None
    wanted_scope: str | None = None
    """The scope that the server required in addition to the granted one; the next sign-in requests it."""


def digest_of(token: str | None) -> str:
    """A hash that identifies the token without revealing it."""
    return hashlib.sha256((token or "").encode()).hexdigest()[:16]


class CredentialStorage:
    """The credentials for one server, with the methods that the SDK's providers call. Damaged ones count as missing;
    unreadable ones raise OAuthFlowError and are not replaced.

    Without our own tokens, those of Claude Code's sign-in are used, and renewed there: a used-up refresh token must not
    remain with a program that will use it again.
    """

    def __init__(self, vault: Vault, key: str, claude_sign_in: "ClaudeSignIn | None" = None) -> None:
        self._vault = vault
        self._key = key
        self._claude_sign_in = claude_sign_in

    @contextlib.asynccontextmanager
    async def lock(self) -> AsyncIterator[None]:
        """Context with the exclusive right, across all processes, to renew these tokens. TimeoutError if another holder
        takes too long, OSError if no lock is possible."""
        # Our lock first in every process, so that no deadlock is possible.
        async with contextlib.AsyncExitStack() as locks:
            await locks.enter_async_context(self._vault.lock(self._key))
            if self._claude_sign_in is not None and await self._borrowed() is not None:
                await locks.enter_async_context(self._claude_sign_in.lock())
            yield

    async def load(self) -> Credentials:
        return await self._borrowed() or await self._own()

    async def _own(self) -> Credentials:
        try:
            stored = await self._vault.load(self._key)
        except OSError as error:
            raise OAuthFlowError(f"the stored tokens cannot be read: {error.strerror}") from None
        if stored is not None:
            with contextlib.suppress(ValidationError):
                return Credentials.model_validate_json(stored)
        return Credentials()

    async def _borrowed(self) -> Credentials | None:
        """Claude Code's credentials, if we have no tokens of our own."""
        if self._claude_sign_in is None or (await self._own()).tokens is not None:
            return None
        return await self._claude_sign_in.load()

    async def update(self, **changes: object) -> None:
        """Change our own stored credentials."""
        credentials = (await self._own()).model_copy(update=changes)
        await self._vault.save(self._key, credentials.model_dump_json(exclude_none=True))

    async def delete(self) -> None:
        """Delete our own stored credentials."""
        await self._vault.delete(self._key)

    async def digest(self) -> str:
        """The digest of the stored access token, or of an empty string if there is none."""
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
        """Store tokens where the ones that they replace came from."""
        expires_at = None if tokens.expires_in is None else time.time() + tokens.expires_in
        # Before anything is stored: once we have our own tokens, those of Claude Code are not used.
        borrowed = await self._borrowed()
        if borrowed is not None and self._claude_sign_in is not None:
            try:
                await self._claude_sign_in.save(tokens, expires_at)
                return
            except OSError as error:
                log.warning(
                    "renewed tokens could not be returned to Claude Code; stored here: %s", type(error).__name__
                )
        await self.update(**{**dict(borrowed or {}), "tokens": tokens, "expires_at": expires_at})

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return (await self.load()).client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        await self.update(client=client_info)


class NeedsAuthMemory:
    """The servers that required a sign-in, by fingerprint, for all processes that share the state.

    Stored together with the digest of the insufficient tokens: an entry no longer applies once there are other tokens,
    from any process or program. A read failure counts as no entry, for that read only; a write failure is only logged:
    a full disk must not end a connection.
    """

    def __init__(self, documents: Documents, clock: Callable[[], float] = time.time) -> None:
        self._documents = documents
        self._clock = clock

    async def remembered(self, key: str) -> str | None:
        """The digest of the tokens for which a sign-in was required; None if unknown or too long ago."""
        try:
            entry = await asyncio.to_thread(self._documents.read, key)
        except _STATE_FAILURES as error:
            log.warning("cannot read whether a server needs a sign-in: %s", error)
            return None
        if entry is None or not 0 <= self._clock() - entry["at"] < REMEMBERED:
            return None
        return str(entry["digest"])

    async def remember(self, key: str, digest: str) -> None:
        await self._update(key, {"at": self._clock(), "digest": digest})

    async def forget(self, key: str) -> None:
        if await self.remembered(key) is not None:
            await self._update(key, None)

    async def _update(self, key: str, entry: dict[str, object] | None) -> None:
        try:
            await asyncio.to_thread(self._documents.update, key, lambda _: entry)
        except _STATE_FAILURES as error:
            log.warning("cannot store whether a server needs a sign-in: %s", error)
