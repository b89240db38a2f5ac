"""Validates access tokens of the operator's authorization server, and finds the person whom a token names.

This server is a protected resource (RFC 9728), not an authorization server: people sign in at the provider in the
settings (`CLAUDE_CODE_MCP_OAUTH_ISSUER`), and clients send the tokens that they got there.

A token is valid if all of these are true; an answer that cannot be determined counts as false:

- It is signed with a key that the issuer publishes, by an algorithm with a private key: a shared secret or `none` is
  never accepted. Keys are read from the issuer's metadata, which must name the same issuer, and again if a token names
  an unknown key. If the settings name an introspection endpoint, that is asked instead (RFC 7662).
- Its issuer is the one in the settings, its audience names this server (RFC 8707), and it has not expired.
- It is an access token, not an id token, unless the settings say that the provider has nothing else.
- It is a bearer token. A token that is bound to a key or certificate of its client (`cnf`) is refused: this server
  checks no proofs, and without them it would accept more than the issuer intended.
- It names the person in the claim that the settings name, with a name that does not belong to another person.

While the keys cannot be read or the endpoint does not answer, requests are refused as unavailable, not as invalid.
"""

import asyncio
import hashlib
import importlib.util
import ipaddress
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard
from urllib.parse import urlsplit

import httpx2

from ...core import json_text
from ...core.config import Settings
from ...core.errors import InvalidArgument, UpstreamUnavailable
from ...core.installation import extra_command
from .settings import TeamSettings

log = logging.getLogger(__name__)

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_TYPES = frozenset({"at+jwt", "application/at+jwt", "jwt"})
"""Accepted types in the header of an access token. Others have a different purpose, such as signing out."""
LEEWAY = 30
"""Maximum difference in seconds between the clocks of the two servers."""
_TIMEOUT = 10.0
_MAX_ANSWER = 1 << 20
_MAX_TOKEN = 16 << 10
_MAX_NAME = 128
_KEYS_FOR = 600.0
"""Seconds after which keys are read again, so that a revoked one is refused."""
_KEYS_AT_MOST = 3600.0
"""Seconds for which keys are used while the issuer cannot be reached."""
_PAUSE = 10.0
"""Minimum seconds between two readings of the keys: anyone can send tokens with unknown keys."""
_METADATA_FOR = 60.0
_INTROSPECTED_FOR = 15.0
_MAX_INTROSPECTED = 1000
_MAX_CONCURRENT_REQUESTS = 16
"""Concurrent requests to the introspection endpoint; others wait."""
_SHOWN_AS_ACCESS = frozenset({"bearer", "at+jwt", "access", "jwt"})
"""Values of the claim `typ` in access tokens of Keycloak; its id tokens have `ID`."""
_OF_ID_TOKENS = frozenset({"nonce", "at_hash", "c_hash", "s_hash"})
"""Claims that OpenID Connect defines for id tokens only."""
_OF_ACCESS_TOKENS = frozenset({"scope", "scp", "client_id", "cid", "appid"})


@dataclass(frozen=True, slots=True)
class Grant:
    """The content of a valid token: who, until when (Unix seconds), and for what."""

    name: str
    subject: str
    expires_at: int
    scopes: tuple[str, ...]
    groups: frozenset[str]
    issued_at: float
    """Of two tokens of a person, the later one determines the groups."""

    @property
    def counts_until(self) -> float:
        """Until when the token is valid here, by a clock that may differ from the issuer's."""
        return float(self.expires_at + LEEWAY)


class TokenIssuer(Protocol):
    """Validates access tokens."""

    issuer: str
    resource: str
    """The MCP endpoint that the tokens are for."""

    @property
    def recheck_interval(self) -> float:
        """Seconds after which an unexpired token must be checked again."""

    def must_ask(self, token: str) -> bool:
        """Whether the token must be introspected (no cached result)."""

    async def check(self, token: str) -> Grant | None:
        """The token's grant; None if it is invalid. Raises UpstreamUnavailable if that cannot be determined now."""


class AccessTokens:
    """Validates the tokens of one issuer for one resource."""

    def __init__(self, settings: Settings, resource: str) -> None:
        """`resource` is the MCP endpoint's address for clients. Does not use the network yet."""
        assert settings.oauth_issuer is not None
        self.issuer = settings.oauth_issuer
        self.resource = resource
        own = settings.section(TeamSettings)
        self._audiences = own.oauth_audience or (resource,)
        self._claim = own.oauth_claim
        self._groups = own.oauth_groups
        self._client_id = own.oauth_client_id
        self._takes_id_tokens = own.oauth_id_tokens
        self._introspection = _Introspection(own) if own.oauth_introspection is not None else None
        self._keys = IssuerKeys(self.issuer)
        self._metadata: Mapping[str, Any] | UpstreamUnavailable = {}
        self._metadata_until = float("-inf")
        self._reading_metadata = asyncio.Lock()

    @property
    def recheck_interval(self) -> float:
        """Seconds after which an unexpired token must be checked again."""
        return _INTROSPECTED_FOR if self._introspection is not None else float("inf")

    def must_ask(self, token: str) -> bool:
        """Whether the issuer must be asked about this token (no cached result). Signatures are checked locally."""
        return self._introspection is not None and not self._introspection.has_known(token)

    async def check(self, token: str) -> Grant | None:
        """The token's grant; None if it is invalid, with the reason in the log. Raises UpstreamUnavailable if that
        cannot be determined now."""
        # Before anything is parsed or forwarded: the sender is unauthenticated.
        if len(token) > _MAX_TOKEN or not token.isascii():
            return None
        try:
            if self._introspection is not None:
                claims = await self._introspected(token)
            else:
                claims = await self._signed(token)
                self._refuse_id_token(token, claims)
            if claims.get("cnf") is not None:
                raise InvalidToken("it is bound to a key or certificate, and this server accepts only bearer tokens")
            return self._grant(claims)
        except InvalidToken as reason:
            log.info("rejected an access token: %s", reason)
            return None
        except UpstreamUnavailable as error:
            # The issuer's address and failures are for the operator, not for the sender of the token.
            log.error("access tokens from %s cannot be verified: %s", self.issuer, error.message)
            raise UpstreamUnavailable("The issuer of access tokens cannot be reached at the moment.") from None

    async def person(self, id_token: str, client_id: str, nonce: str) -> Grant | None:
        """The person in the issuer's id token for this sign-in; None if it is invalid, with the reason in the log.
        Raises UpstreamUnavailable if that cannot be determined now."""
        try:
            claims = await self._signed(id_token, [client_id])
            # The token must have been issued for this sign-in, not for one that another person started.
            if claims.get("nonce") != nonce or claims.get("azp", client_id) != client_id:
                raise InvalidToken("it belongs to another sign-in")
            return self._grant(claims)
        except InvalidToken as reason:
            log.info("rejected an id token: %s", reason)
            return None

    async def exchange(self, form: Mapping[str, str], client: tuple[str, str]) -> Mapping[str, Any]:
        """The answer of the issuer's token endpoint. Raises UpstreamUnavailable, also for a refusal."""
        endpoint = (await self.metadata()).get("token_endpoint")
        if not isinstance(endpoint, str) or not _is_safe(endpoint):
            raise UpstreamUnavailable("its metadata names no token endpoint")
        answer = await _get_json(endpoint, form, client)
        return answer if isinstance(answer, dict) else {}

    async def metadata(self) -> Mapping[str, Any]:
        """The issuer's metadata, at most a minute old. Raises UpstreamUnavailable."""
        # All callers share one request, and a failure is cached too: any unauthenticated client can trigger it.
        async with self._reading_metadata:
            if time.monotonic() >= self._metadata_until:
                try:
                    self._metadata, lasts = await _metadata_of(self.issuer), _METADATA_FOR
                except UpstreamUnavailable as error:
                    self._metadata, lasts = error, _PAUSE
                self._metadata_until = time.monotonic() + lasts
            found = self._metadata
        if isinstance(found, UpstreamUnavailable):
            raise UpstreamUnavailable(found.message)
        return found

    async def _signed(self, token: str, audiences: Sequence[str] = ()) -> Mapping[str, Any]:
        import jwt  # noqa: PLC0415 - only where there is an issuer

        try:
            header = jwt.get_unverified_header(token)
            kind, key_id = header.get("typ", "JWT"), header.get("kid")
            if not isinstance(kind, str) or kind.casefold() not in _TYPES:
                raise InvalidToken("not a token of this kind")
            key = await self._keys.find(key_id if isinstance(key_id, str) else None)
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[*ALGORITHMS],
                audience=[*(audiences or self._audiences)],
                issuer=self.issuer,
                leeway=LEEWAY,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.PyJWTError as error:
            raise InvalidToken(str(error)) from None
        return claims

    def _refuse_id_token(self, token: str, claims: Mapping[str, Any]) -> None:
        """Raises InvalidToken for an id token, which tells a client who a person is and grants no access: it is sent to
        places that keep no secrets, such as page logs.

        A header `at+jwt` (RFC 9068) is conclusive. Otherwise a token is an access token unless it has a claim of id
        tokens; if its audience is a client id, as in every id token of that client, it must also have a claim of access
        tokens.
        """
        import jwt  # noqa: PLC0415

        if self._takes_id_tokens or str(jwt.get_unverified_header(token).get("typ", "")).casefold().endswith("at+jwt"):
            return
        kind, use = claims.get("typ", "Bearer"), claims.get("token_use", "access")
        if not isinstance(kind, str) or kind.casefold() not in _SHOWN_AS_ACCESS or use != "access":
            raise InvalidToken("its claims mark it as something other than an access token")
        if not _OF_ID_TOKENS.isdisjoint(claims):
            raise InvalidToken("it is an id token")
        named = claims.get("aud")
        audiences = {named} if isinstance(named, str) else {*named} if isinstance(named, list) else set()
        if audiences == {self._client_id} and _OF_ACCESS_TOKENS.isdisjoint(claims):
            raise InvalidToken("it cannot be distinguished from an id token")

    async def _introspected(self, token: str) -> Mapping[str, Any]:
        assert self._introspection is not None
        claims = await self._introspection.ask(token)
        audiences = claims.get("aud")
        named = [audiences] if isinstance(audiences, str) else audiences if isinstance(audiences, list) else []
        if not {*self._audiences}.intersection(name for name in named if isinstance(name, str)):
            raise InvalidToken("it is for another audience")
        if claims.get("iss", self.issuer) != self.issuer:
            raise InvalidToken("it is from another issuer")
        return claims

    def _grant(self, claims: Mapping[str, Any]) -> Grant:
        subject, expires_at = claims.get("sub"), claims.get("exp")
        if not isinstance(subject, str) or not subject:
            raise InvalidToken("it has no subject")
        if isinstance(expires_at, bool) or not isinstance(expires_at, int | float) or expires_at < time.time() - LEEWAY:
            raise InvalidToken("it has expired")
        name, groups = name_in(claims, self._claim), groups_in(claims, self._groups)
        return Grant(name, subject, int(expires_at), _scopes(claims), groups, _issued_at(claims))


def name_in(claims: Mapping[str, Any], claim: str) -> str:
    """The person's name from a claim. Raises InvalidToken if it is invalid: rules, limits and files use it, so it must
    be one printable word."""
    name = claims.get(claim)
    if not isinstance(name, str) or not name.isascii() or not name.isprintable() or " " in name:
        raise InvalidToken(f"its claim {claim!r} is not a valid name")
    if not 0 < len(name) <= _MAX_NAME:
        raise InvalidToken(f"its claim {claim!r} is too long or empty")
    # Anyone may register with another person's address; the issuer reports whether the address is verified.
    if claim == "email" and claims.get("email_verified") is not True:
        raise InvalidToken("its email address is not verified")
    return name


def groups_in(claims: Mapping[str, Any], claim: str) -> frozenset[str]:
    listed = claims.get(claim)
    return frozenset(group for group in listed if isinstance(group, str)) if isinstance(listed, list) else frozenset()


def check_oauth_settings(settings: Settings) -> None:
    """Raises InvalidArgument for an address that would send tokens or keys unencrypted, and for settings that cannot be
    combined."""
    own = settings.section(TeamSettings)
    for name, address in (
        ("CLAUDE_CODE_MCP_OAUTH_ISSUER", settings.oauth_issuer),
        ("CLAUDE_CODE_MCP_OAUTH_INTROSPECTION", own.oauth_introspection),
    ):
        if address is not None and not _is_safe(address):
            raise InvalidArgument(f"{name} must be an https address without a query; {address!r} is not.")
    if settings.oauth:
        _refuse_settings_of_a_provider(settings)
    if settings.oauth and importlib.util.find_spec("webauthn") is None:
        raise InvalidArgument(f"Passkeys need the extra `oauth`: {extra_command('oauth')}")
    if own.oauth_introspection is not None and own.oauth_client_id is None:
        raise InvalidArgument("CLAUDE_CODE_MCP_OAUTH_CLIENT_ID is needed for the introspection of tokens.")
    if (settings.oauth or settings.oauth_issuer is not None) and settings.principal_sign_in:
        raise InvalidArgument(
            "CLAUDE_CODE_MCP_PRINCIPAL_SIGN_IN cannot be combined with OAuth sign-in: the callers that sign in to the "
            "hub's servers must be known when this server starts."
        )


def _refuse_settings_of_a_provider(settings: Settings) -> None:
    """Raises InvalidArgument if a setting refers to another authorization server: its requirements, such as scopes, are
    not in this server's tokens."""
    own = settings.section(TeamSettings)
    for name, value in (
        ("ISSUER", settings.oauth_issuer),
        ("AUDIENCE", own.oauth_audience),
        ("SCOPES", own.oauth_scopes),
        ("ID_TOKENS", own.oauth_id_tokens),
        ("INTROSPECTION", own.oauth_introspection),
        ("CLIENT_ID", own.oauth_client_id),
    ):
        if value:
            raise InvalidArgument(
                f"CLAUDE_CODE_MCP_OAUTH_{name} is for an authorization server of your own: with --oauth this server is "
                "one itself."
            )


def is_safe_page(address: object) -> TypeGuard[str]:
    """Whether people can be sent to an address, which may have a query: they enter private data there."""
    return isinstance(address, str) and _is_safe(address.partition("?")[0])


def _is_safe(address: str) -> bool:
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
    except ValueError:
        return False
    plain = parts.scheme == "http" and _is_loopback(host)
    return bool(host) and (parts.scheme == "https" or plain) and not parts.query and not parts.fragment


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _issued_at(claims: Mapping[str, Any]) -> float:
    """When the token was issued: now if unknown, and never later."""
    found, now = claims.get("iat"), time.time()
    return min(float(found), now) if isinstance(found, int | float) and not isinstance(found, bool) else now


def _scopes(claims: Mapping[str, Any]) -> tuple[str, ...]:
    """`scope` of RFC 9068, or `scp` of some providers, as a string or a list."""
    found = claims.get("scope", claims.get("scp", ""))
    if isinstance(found, str):
        return tuple(found.split())
    return tuple(part for part in found if isinstance(part, str)) if isinstance(found, list) else ()


class InvalidToken(Exception):
    """Why a token is invalid, for the log; never contains any part of the token."""


class IssuerKeys:
    """The keys of an issuer, read when the first token arrives."""

    def __init__(self, issuer: str) -> None:
        self._issuer = issuer
        self._by_id: dict[str | None, Any] = {}
        self._read_at = self._tried_at = float("-inf")
        self._reading = asyncio.Lock()

    async def find(self, key_id: str | None) -> Any:
        """The key with this id, or without an id the only key. Raises InvalidToken if there is none,
        UpstreamUnavailable if they cannot be read and have not been for an hour."""
        if key_id not in self._by_id or self._age() >= _KEYS_FOR:
            async with self._reading:
                await self._read_again(key_id)
        if key_id not in self._by_id:
            raise InvalidToken("it is not signed with a key of the issuer")
        return self._by_id[key_id]

    async def _read_again(self, key_id: str | None) -> None:
        # Another caller may have read the keys while this one waited at the lock; each attempt is followed by a pause.
        if (key_id in self._by_id and self._age() < _KEYS_FOR) or time.monotonic() - self._tried_at < _PAUSE:
            if self._age() >= _KEYS_AT_MOST:
                raise UpstreamUnavailable("the issuer's keys could not be read")
            return
        try:
            await self._read()
        except UpstreamUnavailable as error:
            if self._age() >= _KEYS_AT_MOST or key_id not in self._by_id:
                raise
            log.warning(
                "the keys of %s cannot be refreshed; using the known ones for now: %s", self._issuer, error.message
            )
        finally:
            # Measured from the end of the attempt: callers that waited must not each wait for an issuer that hangs.
            self._tried_at = time.monotonic()

    def _age(self) -> float:
        return time.monotonic() - self._read_at

    async def _read(self) -> None:
        import jwt  # noqa: PLC0415

        metadata = await _metadata_of(self._issuer)
        address = metadata.get("jwks_uri")
        if not isinstance(address, str) or not _is_safe(address.partition("?")[0]):
            raise UpstreamUnavailable("its metadata has no jwks_uri")
        published = await _get_json(address)
        found: dict[str | None, Any] = {}
        rows = published.get("keys") if isinstance(published, dict) else None
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, dict) and row.get("use", "sig") == "sig":
                try:
                    key = jwt.PyJWK(row)
                except (jwt.PyJWTError, TypeError, ValueError):
                    continue  # an unknown kind or not a key; the other keys are used
                if key.algorithm_name in ALGORITHMS and isinstance(key.key_id, str | None):
                    found[key.key_id] = key
        if len(found) == 1:
            found[None] = next(iter(found.values()))
        self._by_id, self._read_at = found, time.monotonic()


class _Introspection:
    """Asks the issuer about each token and caches answers briefly."""

    def __init__(self, settings: TeamSettings) -> None:
        assert settings.oauth_introspection is not None
        assert settings.oauth_client_id is not None
        secret = settings.oauth_client_secret
        self._address = settings.oauth_introspection
        self._client = (settings.oauth_client_id, secret.get_secret_value() if secret is not None else "")
        self._known: OrderedDict[bytes, tuple[float, Mapping[str, Any]]] = OrderedDict()
        self._refused: OrderedDict[bytes, float] = OrderedDict()
        """Inactive tokens, and how long that is cached. Separate, so that strangers cannot displace active ones."""
        self._asking = asyncio.Semaphore(_MAX_CONCURRENT_REQUESTS)

    def has_known(self, token: str) -> bool:
        """Whether the cache says that this token is active."""
        return _digest(token) in self._known

    async def ask(self, token: str) -> Mapping[str, Any]:
        """The issuer's data about an active token. Raises InvalidToken for others, UpstreamUnavailable without an
        answer."""
        digest = _digest(token)
        until, claims = self._known.get(digest, (0.0, {}))
        if time.monotonic() < until:
            return claims
        if time.monotonic() < self._refused.get(digest, 0.0):
            raise InvalidToken("the issuer reported it as not active")
        try:
            async with self._asking:
                claims = await self._answer(token)
        except InvalidToken:
            self._known.pop(digest, None)
            _keep(self._refused, digest, time.monotonic() + _INTROSPECTED_FOR)
            raise
        _keep(self._known, digest, (time.monotonic() + _INTROSPECTED_FOR, claims))
        return claims

    async def _answer(self, token: str) -> Mapping[str, Any]:
        form = {"token": token, "token_type_hint": "access_token"}
        answer = await _get_json(self._address, form, self._client)
        if not isinstance(answer, dict) or answer.get("active") is not True:
            raise InvalidToken("the issuer reports it as not active")
        return answer


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _keep(kept: OrderedDict[bytes, Any], digest: bytes, value: Any) -> None:
    kept[digest] = value
    kept.move_to_end(digest)
    while len(kept) > _MAX_INTROSPECTED:
        kept.popitem(last=False)


async def _metadata_of(issuer: str) -> Mapping[str, Any]:
    """The metadata at the well-known addresses of RFC 8414 and OpenID Connect. Raises UpstreamUnavailable if there is
    none or if it names another issuer, whose keys would otherwise be trusted for this one."""
    parts = urlsplit(issuer)
    base, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    addresses = (
        f"{base}/.well-known/oauth-authorization-server{path}",
        f"{base}/.well-known/openid-configuration{path}",
        f"{base}{path}/.well-known/openid-configuration",
    )
    problem = "it has no metadata"
    for address in dict.fromkeys(addresses):
        try:
            found = await _get_json(address)
        except UpstreamUnavailable as error:
            problem = error.message
            continue
        if isinstance(found, dict) and found.get("issuer") == issuer:
            return found
        problem = "its metadata belongs to another issuer"
    raise UpstreamUnavailable(problem)


async def _get_json(address: str, form: Mapping[str, str] | None = None, client: tuple[str, str] | None = None) -> Any:
    """The JSON at an address, from a GET request or a form POST. Raises UpstreamUnavailable for every other answer."""
    try:
        async with (
            asyncio.timeout(_TIMEOUT),
            httpx2.AsyncClient(timeout=_TIMEOUT, follow_redirects=False) as http,
            http.stream("GET" if form is None else "POST", address, data=form, auth=client) as answer,
        ):
            body = bytearray()
            async for part in answer.aiter_bytes():
                body += part
                # Checked before the next chunk: the issuer is trusted with names, not with this server's memory.
                if len(body) > _MAX_ANSWER:
                    raise UpstreamUnavailable(f"{address} sent too large a response")
        if answer.status_code != 200:
            raise UpstreamUnavailable(f"{address} answered {answer.status_code}")
        return json_text.decode(bytes(body))
    except (httpx2.HTTPError, TimeoutError, ValueError, OSError) as error:
        raise UpstreamUnavailable(f"{address} cannot be read: {error or type(error).__name__}") from None
