"""How a server's transport shows who we are: a configured header, OAuth, an assertion, or an IDE's token.

OAuth has two providers that share stored credentials: `SilentOAuth` serves a connection, `InteractiveOAuth` is the flow
with a person and a browser, which `sign_in` runs. `http_auth` chooses what a configured server gets.
"""

import json
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
from mcp.client.auth import OAuthFlowError

from ..config_entry import IdeConfig, OAuthServerConfig, ServerConfig
from ..dependencies import HubDeps
from .claude_sign_in import ClaudeSignIn
from .credentials import CredentialStorage
from .cross_app_access import AssertionOAuth
from .silent_oauth import SilentOAuth

IDE_HEADER = "X-Claude-Code-Ide-Authorization"


def has_oauth(config: ServerConfig) -> bool:
    """Whether a person can sign in to the server itself."""
    return isinstance(config, OAuthServerConfig) and not config.oauth.xaa


def credential_storage(name: str, config: OAuthServerConfig, deps: HubDeps) -> CredentialStorage:
    """Tokens belong to a name and an address: an entry that now leads elsewhere must not take them there."""
    elsewhere = ClaudeSignIn(deps.claude_directory, name, config.url) if deps.uses_claude_sign_ins else None
    return CredentialStorage(deps.vault, _key(name, config), elsewhere)


def own_storage(name: str, config: OAuthServerConfig, deps: HubDeps) -> CredentialStorage:
    """The same without the sign-in of Claude Code: what a sign-in of ours begins with, and where it is kept."""
    return CredentialStorage(deps.vault, _key(name, config))


def _key(name: str, config: OAuthServerConfig) -> str:
    return f"{name} {config.url}"


def http_auth(name: str, config: OAuthServerConfig, deps: HubDeps) -> httpx2.Auth | None:
    """What adds tokens to requests; None where a header is configured for that. Raises OAuthFlowError."""
    if any(header.lower() == "authorization" for header in config.headers):
        return None
    if not config.oauth.xaa:
        storage = credential_storage(name, config, deps)
        return SilentOAuth(config.url, config.oauth, storage, config.tls, deps.renewals)
    if deps.identity_provider is None:
        raise OAuthFlowError("cross-app access is asked for, but there is no identity provider")
    storage, get_assertion = own_storage(name, config, deps), deps.identity_provider.assertion
    return AssertionOAuth(config.url, config.oauth, storage, config.tls, deps.renewals, get_assertion)


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
