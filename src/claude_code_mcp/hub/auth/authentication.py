"""How a server's transport shows who we are: a configured header, OAuth, an assertion, or an IDE's token."""

import json
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
from mcp.client.auth import OAuthFlowError

from ..config_entry import IdeConfig, OAuthServerConfig, ServerConfig
from ..dependencies import HubDeps
from .credentials import CredentialStorage
from .cross_app_access import assertion_auth
from .oauth import SilentOAuth

IDE_HEADER = "X-Claude-Code-Ide-Authorization"


def has_oauth(config: ServerConfig) -> bool:
    """Whether a person can sign in to the server."""
    return isinstance(config, OAuthServerConfig) and not config.oauth.xaa


def credential_storage(name: str, config: OAuthServerConfig, deps: HubDeps) -> CredentialStorage:
    """Tokens belong to a name and an address: an entry that now leads elsewhere must not take them there."""
    return CredentialStorage(deps.vault, f"{name} {config.url}")


def http_auth(name: str, config: OAuthServerConfig, deps: HubDeps) -> httpx2.Auth | None:
    """What adds tokens to requests; None where a header is configured for that. Raises OAuthFlowError."""
    if any(header.lower() == "authorization" for header in config.headers):
        return None
    storage = credential_storage(name, config, deps)
    if not config.oauth.xaa:
        return SilentOAuth(config.url, config.oauth, storage)
    if deps.get_assertion is None:
        raise OAuthFlowError("cross-app access is asked for, but there is no identity provider")
    return assertion_auth(config.url, config.oauth, storage, deps.get_assertion)


def ide_headers(config: IdeConfig, claude_directory: Path) -> dict[str, str]:
    """The headers for an IDE: those configured, and its token, which may stand in the lock file of its port."""
    token = config.auth_token or _token_of_lock_file(config.url, claude_directory)
    return {**config.headers, IDE_HEADER: token} if token else dict(config.headers)


def _token_of_lock_file(url: str, claude_directory: Path) -> str | None:
    port = urlsplit(url).port
    try:
        lock = json.loads((claude_directory / "ide" / f"{port}.lock").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    token = lock.get("authToken") if isinstance(lock, dict) else None
    return token if isinstance(token, str) else None
