"""Enterprise-managed authorization: an assertion of the organisation's identity provider in the place of a consent.

A client that somebody has signed in to at that provider brings an Identity Assertion Authorization Grant (ID-JAG) to
the token endpoint, as a JWT bearer grant (RFC 7523), and gets an access token for that person. The provider decides who
may use which client with this server; nobody is asked here.

An assertion counts if all of this holds; whatever cannot be said counts as not good:

- It is of the provider in the settings, signed with a key that it publishes, and says that it is an ID-JAG: neither an
  id token nor an access token is one.
- It was made for this authorization server and no other, for `/mcp` of this server, and for the very client that
  brings it and has proved with its secret that it is that client.
- It has not expired, lasts no longer than an hour, and has not come before.
- It is bound to no key: that cannot be looked at here.

Who the person is says the claim of the settings, as with access tokens of a provider. A name belongs to the subject of
the provider who came by it first; that of somebody who was invited is not given away.
"""

import asyncio
import base64
import binascii
import hmac
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import unquote_plus

from starlette.datastructures import FormData
from starlette.responses import JSONResponse, Response

from ...config import Settings
from ...model.options import is_reserved
from ...server.transports.access_tokens import ALGORITHMS, LEEWAY, IssuerKeys, NotGood, groups_in, name_in
from ...server.transports.callers import SCOPE, load_clients
from ...state.oauth_grants import ACCESS_SECONDS, Assertion, AssertionRefused, OAuthGrants

log = logging.getLogger(__name__)

GRANT_TYPE = "urn:ietf:params:oauth:grant-type:jwt-bearer"
GRANT_PROFILE = "urn:ietf:params:oauth:grant-profile:id-jag"
CLIENT_METHODS = ("client_secret_basic", "client_secret_post")
_TYPE = "oauth-id-jag+jwt"
_LONGEST = 16 << 10
_LONGEST_ID = 512
_MOST_SECONDS = 3600
_NO_STORE = {"Cache-Control": "no-store", "Pragma": "no-cache"}


class UnknownClient(Exception):
    """Whoever asks is no client that may bring assertions."""


class IdentityAssertions:
    """Takes the assertions of one provider for one authorization server."""

    def __init__(
        self,
        settings: Settings,
        issuer: str,
        resource: str,
        grants: OAuthGrants,
        learn_secrets: Callable[[Iterable[str]], None],
    ) -> None:
        """`issuer` is this authorization server, `resource` what its tokens are for. InvalidArgument if the file of
        clients cannot be used. Blocks on the disk."""
        assert settings.oauth_identity_provider is not None
        assert settings.oauth_clients_file is not None
        self.provider = settings.oauth_identity_provider
        self._clients_file = settings.oauth_clients_file
        self._claim, self._groups = settings.oauth_claim, settings.oauth_groups
        self._issuer = issuer
        self._resource = resource
        self._grants = grants
        self._learn_secrets = learn_secrets
        self._keys = IssuerKeys(self.provider)
        self._load_clients()

    def _load_clients(self) -> dict[str, str]:
        clients = load_clients(self._clients_file)
        self._learn_secrets(clients)
        return clients

    async def client(self, form: FormData, authorization: str | None) -> str:
        """The id of the client that sends this form. UnknownClient if it has not proved to be one, InvalidArgument
        while the file of clients cannot be used."""
        client_id, secret = _credentials(form, authorization)
        # Read each time: a client that is taken out of the file is out.
        clients, found = await asyncio.to_thread(self._load_clients), None
        # Every secret is compared, so that the time tells nothing about which one fits.
        for known, name in clients.items():
            if hmac.compare_digest(secret.encode("utf-8", "surrogatepass"), known.encode()) and name == client_id:
                found = name
        if found is None:
            raise UnknownClient
        return found

    async def redeem(self, form: FormData, client_id: str) -> tuple[Assertion, Response] | Response:
        """The answer with an access token, and the assertion that it is for; or the refusal, whose reason is in the
        log. OSError and UpstreamUnavailable while that cannot be said."""
        try:
            assertion = await self._checked(form.get("assertion"), client_id)
        except NotGood as reason:
            log.warning("an assertion of %s is refused: %s", self.provider, reason)
            return _refusal("invalid_grant", "The assertion does not count here.")
        made = await asyncio.to_thread(self._grants.redeem_assertion, assertion)
        if isinstance(made, AssertionRefused):
            log.error("an assertion of %s about %s is refused: %s", self.provider, assertion.name, made)
            return _refusal("invalid_grant", "The assertion does not count here.")
        granted = {"access_token": made, "token_type": "Bearer", "expires_in": ACCESS_SECONDS, "scope": SCOPE}
        return assertion, JSONResponse(granted, 200, _NO_STORE)

    async def _checked(self, text: object, client_id: str) -> Assertion:
        """What an assertion says. NotGood if it does not count."""
        # Before anything is parsed.
        if not isinstance(text, str) or len(text) > _LONGEST or not text.isascii():
            raise NotGood("it is none")
        claims = await self._signed(text)
        # Compared as texts, with one audience alone: what others may use too could come from them.
        if _only(claims.get("aud")) not in (self._issuer, f"{self._issuer}/"):
            raise NotGood("it is for another authorization server")
        if _only(claims.get("resource")) not in (self._resource, f"{self._resource}/"):
            raise NotGood("it is for another resource")
        if claims.get("client_id") != client_id:
            raise NotGood("it was given to another client")
        if claims.get("cnf") is not None:
            raise NotGood("it is bound to something that cannot be looked at here")
        assertion_id, subject = claims["jti"], claims["sub"]
        if not isinstance(assertion_id, str) or not 0 < len(assertion_id) <= _LONGEST_ID or not subject:
            raise NotGood("it has no id, or no subject")
        if "scope" in claims and SCOPE not in str(claims["scope"]).split():
            raise NotGood(f"it is not for the scope {SCOPE}")
        name = name_in(claims, self._claim)
        if is_reserved(name):
            raise NotGood("its name means something else here")
        issued_at, expires_at = _times(claims)
        return Assertion(
            self.provider,
            subject,
            name,
            tuple(sorted(groups_in(claims, self._groups))),
            issued_at,
            expires_at,
            assertion_id,
            client_id,
            (SCOPE,),
            self._resource,
        )

    async def _signed(self, text: str) -> Mapping[str, Any]:
        import jwt  # noqa: PLC0415 - only where there is a provider

        try:
            header = jwt.get_unverified_header(text)
            key_id = header.get("kid")
            if str(header.get("typ", "")).casefold().removeprefix("application/") != _TYPE:
                raise NotGood("it is no assertion by its header")
            key = await self._keys.find(key_id if isinstance(key_id, str) else None)
            claims: Mapping[str, Any] = jwt.decode(
                text,
                key,
                algorithms=[*ALGORITHMS],
                issuer=self.provider,
                leeway=LEEWAY,
                # Whom it is for is compared by whoever asks for this, more strictly than here.
                options={"require": ["exp", "iat", "iss", "aud", "sub", "jti"], "verify_aud": False},
            )
        except jwt.PyJWTError as error:
            raise NotGood(str(error)) from None
        return claims


def _times(claims: Mapping[str, Any]) -> tuple[float, float]:
    """When an assertion was issued, and until when it could come again. NotGood if that is too long: which ones have
    come is remembered for as long."""
    issued_at, expires_at = claims["iat"], claims["exp"]
    if any(isinstance(moment, bool) or not isinstance(moment, int | float) for moment in (issued_at, expires_at)):
        raise NotGood("its times are none")
    if expires_at - issued_at > _MOST_SECONDS:
        raise NotGood("it lasts too long")
    return float(issued_at), float(expires_at) + LEEWAY


def _only(value: object) -> object:
    """The only one of what may be a list."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _credentials(form: FormData, authorization: str | None) -> tuple[str, str]:
    """The id and the secret that a client shows, in the header or in the form, and not in both (RFC 6749, 2.3).
    UnknownClient if it shows none."""
    named, secret = form.get("client_id"), form.get("client_secret")
    if authorization is None:
        if not isinstance(named, str) or not isinstance(secret, str):
            raise UnknownClient
        return named, secret
    scheme, _, encoded = authorization.partition(" ")
    try:
        client_id, found, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise UnknownClient from None
    if scheme.casefold() != "basic" or not found or secret is not None:
        raise UnknownClient
    if named is not None and named != unquote_plus(client_id):
        raise UnknownClient
    return unquote_plus(client_id), unquote_plus(password)


def _refusal(error: str, description: str) -> Response:
    return JSONResponse({"error": error, "error_description": description}, 400, _NO_STORE)
