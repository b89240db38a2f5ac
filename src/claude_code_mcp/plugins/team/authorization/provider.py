"""The provider for the MCP SDK's authorization handlers: clients, codes and tokens of the embedded authorization
server.

The SDK parses requests, checks PKCE (S256 only), redirect addresses and clients, and writes the OAuth answers. This
decides which clients are acceptable, for which resource there are tokens (RFC 8707), and that a second use of a code or
refresh token revokes everything issued from it.
"""

import asyncio
import time
from collections.abc import Callable
from urllib.parse import urlencode

from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    AuthorizeError,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    RegistrationError,
    TokenError,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyUrl

from ....core.errors import UpstreamUnavailable
from ....server.transports.callers import SCOPE
from ..access_tokens import Grant
from ..invited_people import Person
from ..oauth_grants import ACCESS_SECONDS, NewTokens, OAuthGrants, Reused, StoredToken
from .clients import ClientDocuments, KnownClient, client_from, has_good_addresses, redirect_origin
from .passkeys import SealedRequests

CONSENT = "/authorize/consent"
_MAX_STATE = 4096
_CHALLENGE_LENGTH = 43
"""Length of a verifier's SHA-256 in base64url (RFC 7636)."""
_MAX_TOKEN = 256
_LOOKED_AT = 15.0
"""Seconds between checks whether the token of a stream is still valid."""
_UNAVAILABLE = "Sign-ins cannot be read at the moment."


def grant_of(person: Person, until: float, scopes: tuple[str, ...] = (SCOPE,)) -> Grant:
    """The grant for the callers. Its groups are current and replace older ones."""
    return Grant(person.name, person.subject, int(until), scopes, frozenset(person.groups), time.time())


class OwnAccessTokens:
    """Validates access tokens issued by this server."""

    def __init__(self, grants: OAuthGrants, issuer: str, resource: str) -> None:
        self.issuer = issuer
        self.resource = resource
        self._grants = grants

    @property
    def recheck_interval(self) -> float:
        """The streams of removed people are closed at once, but not necessarily the streams of a person who revoked one
        token."""
        return _LOOKED_AT

    def must_ask(self, token: str) -> bool:
        """Never: the tokens are in this server's database."""
        return False

    async def check(self, token: str) -> Grant | None:
        """The token's grant; None if it is invalid. Raises UpstreamUnavailable if that cannot be determined now."""
        if len(token) > _MAX_TOKEN or not token.isascii():
            return None
        try:
            # Looked up for each request, so that an ended grant is refused at once.
            found = await asyncio.to_thread(self._grants.access_token, token)
        except OSError:
            raise UpstreamUnavailable(_UNAVAILABLE) from None
        if found is None or found.granted.resource != self.resource:
            return None
        return grant_of(found.granted.person, found.expires_at, found.scopes)


class Provider(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """The provider of one server."""

    def __init__(
        self,
        grants: OAuthGrants,
        documents: ClientDocuments,
        requests: SealedRequests,
        issuer: str,
        resource: str,
        stolen: Callable[[str], None],
    ) -> None:
        """`stolen` is called with a person's name when one of their codes or refresh tokens is used twice."""
        self._grants = grants
        self._documents = documents
        self._requests = requests
        self._issuer = issuer
        self._resource = resource
        self._stolen = stolen

    # -- clients --------------------------------------------------------------------------------------------------

    async def get_client(self, client_id: str) -> KnownClient | None:
        if self._documents.is_document(client_id):
            return await self._documents.read(client_id)
        stored = await asyncio.to_thread(self._grants.client, client_id)
        client = None if stored is None else KnownClient.model_validate_json(stored)
        # A client accepted by earlier rules is treated as unknown: it gets an error and registers again.
        return client if client is not None and has_good_addresses(client) else None

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        try:
            known = client_from(client_info.model_dump(mode="json"), client_info.client_id, self._issuer)
        except ValueError as error:
            raise RegistrationError("invalid_redirect_uri", str(error)) from None
        await asyncio.to_thread(self._grants.register, known.client_id, known.model_dump_json(exclude_none=True))
        # The SDK answers with this object: it shows the client its effective metadata, and that it needs no secret.
        client_info.client_secret = client_info.client_secret_expires_at = None
        for name in ("client_name", "token_endpoint_auth_method", "grant_types", "response_types", "scope"):
            setattr(client_info, name, getattr(known, name))

    # -- codes ----------------------------------------------------------------------------------------------------

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        """The page on which a person decides. Nothing is stored until they do."""
        if params.resource is not None and params.resource.rstrip("/") != self._resource:
            raise AuthorizeError("invalid_target", f"Tokens are issued only for {self._resource}.")
        if len(params.code_challenge) != _CHALLENGE_LENGTH:
            raise AuthorizeError("invalid_request", "code_challenge must be the SHA-256 of the verifier.")
        if params.state is not None and len(params.state) > _MAX_STATE:
            raise AuthorizeError("invalid_request", "The state is too long.")
        redirect_origin(str(params.redirect_uri))
        fields = {
            "purpose": "consent",
            "client": client.client_id,
            "name": client.client_name,
            "redirect": str(params.redirect_uri),
            "given": params.redirect_uri_provided_explicitly,
            "state": params.state,
            "challenge": params.code_challenge,
        }
        return f"{self._issuer}{CONSENT}?{urlencode({'request': self._requests.seal(fields)})}"

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        found = await asyncio.to_thread(self._grants.code, authorization_code)
        if found is None or found.granted.client_id != client.client_id:
            return None
        return AuthorizationCode(
            code=authorization_code,
            scopes=[*found.granted.scopes],
            # The expiry is checked at redemption: a second use counts as such, however late it happens.
            expires_at=time.time() + 60,
            client_id=found.granted.client_id,
            code_challenge=found.challenge,
            redirect_uri=AnyUrl(found.redirect_uri),
            redirect_uri_provided_explicitly=found.redirect_given,
            resource=found.granted.resource,
            subject=found.granted.person.subject,
        )

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        return self._tokens(await asyncio.to_thread(self._grants.redeem, authorization_code.code))

    # -- tokens ---------------------------------------------------------------------------------------------------

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        found = await asyncio.to_thread(self._grants.refresh_token, refresh_token)
        if found is None or found.granted.client_id != client.client_id:
            return None
        return RefreshToken(
            token=refresh_token,
            client_id=found.granted.client_id,
            scopes=[*found.scopes],
            resource=found.granted.resource,
            subject=found.granted.person.subject,
        )

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        # Without duplicates: a request could repeat a scope thousands of times, and scopes are stored with the tokens.
        return self._tokens(await asyncio.to_thread(self._grants.rotate, refresh_token.token, [*dict.fromkeys(scopes)]))

    def _tokens(self, made: NewTokens | Reused | None) -> OAuthToken:
        if isinstance(made, Reused):
            self._stolen(made.name)
        if not isinstance(made, NewTokens):
            raise TokenError("invalid_grant", "It was already used or has expired.")
        return OAuthToken(
            access_token=made.access,
            expires_in=ACCESS_SECONDS,
            scope=" ".join(made.scopes),
            refresh_token=made.refresh,
        )

    async def load_access_token(self, token: str) -> AccessToken | None:
        found = await asyncio.to_thread(self._grants.access_token, token)
        if found is None:
            return None
        granted = found.granted
        return AccessToken(token=token, client_id=granted.client_id, scopes=[*found.scopes], resource=granted.resource)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        """Ends everything of the token's consent."""
        found = await asyncio.to_thread(self._stored, token.token)
        if found is not None:
            await asyncio.to_thread(self._grants.end, found.granted.grant_id)

    def _stored(self, token: str) -> StoredToken | None:
        return self._grants.access_token(token) or self._grants.refresh_token(token)
