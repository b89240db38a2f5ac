"""An OAuth-protected server on loopback: its own authorization server, with tokens that tests can let expire."""

import asyncio
import secrets
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    IdentityAssertionParams,
    OAuthAuthorizationServerProvider,
    ProviderTokenVerifier,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken


def auth_settings(port: int, *scopes: str, identity: bool = False) -> AuthSettings:
    base = f"http://127.0.0.1:{port}"
    return AuthSettings.model_validate(
        {
            "issuer_url": base,
            "resource_server_url": f"{base}/mcp",
            "client_registration_options": ClientRegistrationOptions(enabled=True),
            "required_scopes": list(scopes) or None,
            "validate_token_resource": False,
            "identity_assertion_enabled": identity,
        }
    )


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass
class Authority(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """Says yes to everybody, and remembers what it was asked. A refresh token is good once: with one that comes again
    everything that was ever given is revoked."""

    lifetime: int = 3600
    answering: asyncio.Event = field(default_factory=_set_event)
    """While it is not set, refreshes are done and not answered."""
    used_up: set[str] = field(default_factory=set)
    reuses: int = 0
    clients: dict[str, OAuthClientInformationFull] = field(default_factory=dict)
    codes: dict[str, AuthorizationCode] = field(default_factory=dict)
    access: dict[str, AccessToken] = field(default_factory=dict)
    refresh: dict[str, RefreshToken] = field(default_factory=dict)
    grants: list[str] = field(default_factory=list)
    asked: list[AuthorizationParams] = field(default_factory=list)
    assertions: list[IdentityAssertionParams] = field(default_factory=list)

    def options(self, port: int, *scopes: str, identity: bool = False) -> dict[str, Any]:
        """What the application of a protected server wants to be given."""
        return {
            "auth": auth_settings(port, *scopes, identity=identity),
            "auth_server_provider": self,
            "token_verifier": ProviderTokenVerifier(self),
        }

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        self.asked.append(params)
        code = AuthorizationCode(
            code=secrets.token_urlsafe(),
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        self.codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self._issue("code", client, authorization_code.scopes)

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        if refresh_token in self.used_up:
            self.reuses += 1
            self.forget_everybody()
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        del self.refresh[refresh_token.token]
        self.used_up.add(refresh_token.token)
        tokens = self._issue("refresh", client, scopes)
        await self.answering.wait()
        return tokens

    async def exchange_identity_assertion(
        self, client: OAuthClientInformationFull, params: IdentityAssertionParams
    ) -> OAuthToken:
        self.assertions.append(params)
        return self._issue("assertion", client, params.scopes or [])

    def _issue(self, grant: str, client: OAuthClientInformationFull, scopes: list[str]) -> OAuthToken:
        self.grants.append(grant)
        access, refresh = secrets.token_urlsafe(), secrets.token_urlsafe()
        self.access[access] = AccessToken(token=access, client_id=client.client_id, scopes=scopes)
        self.refresh[refresh] = RefreshToken(token=refresh, client_id=client.client_id, scopes=scopes)
        return OAuthToken(
            access_token=access, refresh_token=refresh, expires_in=self.lifetime, scope=" ".join(scopes) or None
        )

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.access.pop(token.token, None)

    def expire(self) -> None:
        """From now on no access token is good any more."""
        self.access.clear()

    def forget_everybody(self) -> None:
        self.access.clear()
        self.refresh.clear()


class Person:
    """Somebody with a browser: goes where they are sent, and comes back to the loopback address."""

    def __init__(self) -> None:
        self.sent_to: list[str] = []

    async def __call__(self, address: str) -> None:
        self.sent_to.append(address)
        async with httpx2.AsyncClient() as browser:
            answer = await browser.get(address)
            await browser.get(answer.headers["location"])

    @property
    def query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.sent_to[-1]).query).items()}
