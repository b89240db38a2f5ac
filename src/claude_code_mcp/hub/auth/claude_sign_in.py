"""Uses the sign-ins of Claude Code itself.

Claude Code keeps tokens under `mcpOAuth` in `.credentials.json` of its directory, or in the macOS keychain, which we do
not read. It renews them under one lock and writes them under another. We take both, so that neither program sends a
refresh token that the other has used up.
"""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import ValidationError

from ...core.private_files import read_regular, replace_file
from .credentials import LOCK_TIMEOUT, Credentials
from .file_locks import directory_lock

_MAX_BYTES = 1 << 20
_REFRESH_STALE, _WRITE_STALE = 60.0, 15.0
"""Seconds after which Claude Code considers such a lock stale."""
_WRITE_TIMEOUT = 10.0
_NOT_IN_NAME = re.compile(r"[^a-zA-Z0-9]")


class ClaudeSignIn:
    """Claude Code's stored sign-in to the server with this name and URL."""

    def __init__(self, directory: Path, name: str, url: str) -> None:
        self._directory = directory
        self._file = directory / ".credentials.json"
        self._name = name
        self._url = url

    async def load(self) -> Credentials | None:
        """Its credentials; None if it is not signed in or they cannot be read."""
        content = await asyncio.to_thread(self._read)
        key = self._find(content)
        return None if key is None else _credentials(content, key)

    @asynccontextmanager
    async def lock(self) -> AsyncIterator[None]:
        """The lock under which Claude Code renews its tokens. Raises OSError, and TimeoutError."""
        key = self._find(await asyncio.to_thread(self._read)) or self._name
        directory = self._directory / f"mcp-refresh-{_NOT_IN_NAME.sub('_', key)}.lock.lock"
        async with directory_lock(directory, LOCK_TIMEOUT, _REFRESH_STALE):
            yield

    async def save(self, tokens: OAuthToken, expires_at: float | None) -> None:
        """Store the tokens that replace its own. Raises OSError."""
        async with directory_lock(self._directory / ".storage-write.lock", _WRITE_TIMEOUT, _WRITE_STALE):
            await asyncio.to_thread(self._write, tokens, expires_at)

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(read_regular(self._file, _MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}

    def _find(self, content: Mapping[str, Any]) -> str | None:
        """The key of the entry with tokens; of several with different headers, the one that expires last."""
        entries = content.get("mcpOAuth")
        fitting = {
            key: entry
            for key, entry in (entries.items() if isinstance(entries, dict) else ())
            if isinstance(entry, dict)
            and (entry.get("serverName"), entry.get("serverUrl")) == (self._name, self._url)
            and entry.get("accessToken")
        }
        return max(fitting, key=lambda key: _seconds(fitting[key].get("expiresAt")) or 0.0, default=None)

    def _write(self, tokens: OAuthToken, expires_at: float | None) -> None:
        content = self._read()
        key = self._find(content)
        if key is None:
            raise FileNotFoundError(2, "Claude Code is no longer signed in to the server", str(self._file))
        renewed = {
            "accessToken": tokens.access_token,
            "refreshToken": tokens.refresh_token,
            "expiresAt": None if expires_at is None else int(expires_at * 1000),
            "scope": tokens.scope,
        }
        entry = content["mcpOAuth"][key]
        content["mcpOAuth"][key] = {**entry, **{name: value for name, value in renewed.items() if value is not None}}
        if expires_at is None:
            content["mcpOAuth"][key].pop("expiresAt", None)
        replace_file(Path(os.path.realpath(self._file)), json.dumps(content).encode())


def _credentials(content: Mapping[str, Any], key: str) -> Credentials | None:
    entry = content["mcpOAuth"][key]
    configured = content.get("mcpOAuthClientConfig")
    of_client = configured.get(key) if isinstance(configured, dict) else None
    secret = entry.get("clientSecret") or (of_client.get("clientSecret") if isinstance(of_client, dict) else None)
    discovered = entry.get("discoveryState")
    try:
        client = OAuthClientInformationFull(
            client_id=entry.get("clientId") or "",
            client_secret=secret,
            redirect_uris=[entry["redirectUri"]] if entry.get("redirectUri") else None,
        )
        return Credentials(
            tokens=OAuthToken(
                access_token=entry["accessToken"], refresh_token=entry.get("refreshToken"), scope=entry.get("scope")
            ),
            expires_at=_seconds(entry.get("expiresAt")),
            client=client if client.client_id else None,
            authorization_server=discovered.get("authorizationServerUrl") if isinstance(discovered, dict) else None,
        )
    except ValidationError:
        return None


def _seconds(milliseconds: object) -> float | None:
    return milliseconds / 1000 if isinstance(milliseconds, int | float) else None
