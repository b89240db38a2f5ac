"""The clients of the embedded authorization server, and what they get: codes, tokens, and the addresses that they ask.

A client says about itself whatever it likes, by registering (RFC 7591) or in a document at the https address that is
its id (Client ID Metadata Documents). Its name is shown to people as text and decides nothing. What counts is where a
browser is sent with a code: to an address that the client has named before, letter by letter, with https, on the
person's own machine, or to a program of theirs by a scheme of its own. On loopback the port may be another one, since
programs take whichever is free (RFC 8252, 7.3). Clients have no secrets: whoever registers could have any.

A document is read from a public address only, which is looked up once and connected to as it is; no redirection is
followed, and an answer is bounded in size and time.

The handlers of the MCP SDK read requests, compare PKCE (S256 only), redirect addresses and clients, and write the
answers of OAuth. `Provider` decides what a client is, for which resource there are tokens (RFC 8707), and that a code
or refresh token which comes a second time ends everything that came of it.
"""

import asyncio
import logging
import math
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

import httpx2
from mcp.server.auth.handlers.metadata import MetadataHandler
from mcp.server.auth.handlers.register import RegistrationHandler
from mcp.server.auth.handlers.token import TokenHandler
from mcp.server.auth.middleware.client_auth import AuthenticationError, ClientAuthenticator
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
from mcp.server.auth.routes import cors_middleware
from mcp.server.auth.settings import ClientRegistrationOptions
from mcp.server.transport_security import RequestBodyLimitMiddleware
from mcp.shared.auth import InvalidRedirectUriError, OAuthClientInformationFull, OAuthMetadata, OAuthToken
from pydantic import AnyUrl, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ... import json_text
from ...errors import ClaudeCodeError, InvalidArgument, RateLimited, UpstreamUnavailable
from ...model.text import one_line, visible
from ...server.transports.access_tokens import Grant
from ...server.transports.callers import SCOPE
from ...server.transports.rate_limits import FailureLimit
from ...state.invited_people import Person
from ...state.oauth_grants import ACCESS_SECONDS, NewTokens, OAuthGrants, Reused
from ..push.receivers import SendFailed, check_url, looked_up
from .passkeys import SealedRequests

log = logging.getLogger(__name__)

_MOST_ADDRESSES = 10
_LONGEST_ADDRESS = 1000
_LONGEST_NAME = 80
_LOOPBACK = frozenset({"127.0.0.1", "[::1]", "localhost"})
_OF_BROWSERS = frozenset(
    {"about", "blob", "chrome", "chrome-extension", "data", "devtools", "edge", "file", "filesystem", "ftp", "intent"}
    | {"jar", "javascript", "mailto", "moz-extension", "opera", "resource", "sms", "tel", "vbscript", "view-source"}
    | {"ws", "wss"}
)
"""Schemes that browsers and phones act on themselves; a scheme of a program is none of these."""
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{1,40}")
_NETLOC = re.compile(r"[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")

_LARGEST_DOCUMENT = 16 << 10
_TIMEOUT = 5.0
_KEPT = 600.0
_FAILURE_KEPT = 30.0
_MOST_KEPT = 200
_MOST_AT_ONCE = 8


class KnownClient(OAuthClientInformationFull):
    """A client as the MCP SDK asks about it."""

    def validate_scope(self, requested_scope: str | None) -> list[str] | None:
        """There is one scope. A client that asks for others gets that one, and is told so with the token."""
        return [SCOPE]

    def validate_redirect_uri(self, redirect_uri: AnyUrl | None) -> AnyUrl:
        named = self.redirect_uris or []
        if redirect_uri is not None:
            wanted = str(redirect_uri)
            # Spelled as the SDK spells the address of a request: one without a path has a slash there.
            spelled = [str(AnyUrl(str(address))) for address in named]
            if any(wanted == address or _same_but_port(wanted, address) for address in spelled):
                return redirect_uri
        elif len(named) == 1:
            return named[0]
        raise InvalidRedirectUriError("The redirect address is none of those that the client has named.")


def _same_but_port(wanted: str, named: str) -> bool:
    first, second = urlsplit(wanted), urlsplit(named)
    if first.scheme != "http" or f"{first.hostname}" not in {"127.0.0.1", "::1", "localhost"}:
        return False
    # Only the port: a name and password before the host would make another host of it to the eye.
    if first.username is not None or first.password is not None:
        return False
    parts = [(part.scheme, part.hostname, part.path, part.query, part.fragment) for part in (first, second)]
    return parts[0] == parts[1]


def redirect_origin(address: str) -> str:
    """What a browser is sent to, as the policy of a page names it. ValueError if browsers must not be sent there."""
    parts = urlsplit(address)
    scheme = parts.scheme.lower()
    if len(address) > _LONGEST_ADDRESS or not address.isascii() or not address.isprintable() or " " in address:
        raise ValueError("it is too long, or has characters that an address cannot have")
    if parts.fragment or parts.username is not None or parts.password is not None:
        raise ValueError("it has a fragment, or a name and password")
    if scheme in ("http", "https"):
        if _NETLOC.fullmatch(parts.netloc) is None:
            raise ValueError("it has no host")
        host = parts.netloc.rpartition(":")[0] if parts.port is not None else parts.netloc
        if scheme == "http" and host.lower() not in _LOOPBACK:
            raise ValueError("it is not encrypted, and not on the person's own machine")
        return f"{scheme}://{parts.netloc}"
    if _SCHEME.fullmatch(scheme) is None or scheme in _OF_BROWSERS:
        raise ValueError("it is not an address of a client")
    return f"{scheme}:"


def client_from(metadata: Mapping[str, Any], client_id: str, own_origin: str) -> KnownClient:
    """A client as it describes itself, with what is believed of that. ValueError, with the reason, if it cannot be a
    client here."""
    addresses = metadata.get("redirect_uris")
    if not isinstance(addresses, list) or not 0 < len(addresses) <= _MOST_ADDRESSES:
        raise ValueError(f"redirect_uris must be a list of 1 to {_MOST_ADDRESSES} addresses")
    for address in addresses:
        if not isinstance(address, str):
            raise ValueError("redirect_uris must be texts")
        # This server's own pages are no client: one of them could be made to act on what belongs to another.
        if redirect_origin(address) == own_origin:
            raise ValueError("a redirect address must not be one of this server")
    name = metadata.get("client_name")
    return KnownClient.model_validate(
        {
            "client_id": client_id,
            "client_name": one_line(visible(name), _LONGEST_NAME) if isinstance(name, str) else None,
            "redirect_uris": addresses,
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
            "scope": SCOPE,
        }
    )


class ClientDocuments:
    """Reads Client ID Metadata Documents, and keeps them for ten minutes."""

    def __init__(self, own_origin: str, *, private: bool = False) -> None:
        """`private`: also from addresses that are not public, and without encryption."""
        self._own_origin = own_origin
        self._private = private
        self._kept: OrderedDict[str, tuple[float, KnownClient | None]] = OrderedDict()
        self._reading = asyncio.Semaphore(_MOST_AT_ONCE)

    def is_document(self, client_id: str) -> bool:
        """Whether an id is the address of a document, and not that of a client that has registered."""
        return client_id.startswith("https://") or (self._private and client_id.startswith("http://"))

    async def read(self, client_id: str) -> KnownClient | None:
        """The client whose id this address is; None if there is no such document, or if it is not about it."""
        until, found = self._kept.get(client_id, (0.0, None))
        if time.monotonic() < until:
            return found
        try:
            # A few at a time: anybody can have documents read.
            async with self._reading:
                found = await self._read(client_id)
        except (SendFailed, InvalidArgument, ValueError, ValidationError, TimeoutError, OSError, httpx2.HTTPError):
            # Why is told to nobody: it would be a way to look at what this server reaches.
            found = None
        self._kept[client_id] = (time.monotonic() + (_FAILURE_KEPT if found is None else _KEPT), found)
        self._kept.move_to_end(client_id)
        while len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        return found

    async def _read(self, client_id: str) -> KnownClient:
        parts = check_url(client_id, private=self._private)
        segments = parts.path.split("/")
        if parts.path in ("", "/") or parts.fragment or "." in segments or ".." in segments:
            raise ValueError("it is no address of a document")
        async with asyncio.timeout(_TIMEOUT):
            address = await looked_up(parts, self._private)
            document = json_text.decode(await _get(parts, address))
        if not isinstance(document, dict) or document.get("client_id") != client_id:
            raise ValueError("the document is about another client")
        if document.get("token_endpoint_auth_method", "none") != "none" or "client_secret" in document:
            raise ValueError("clients have no secrets here")
        return client_from(document, client_id, self._own_origin)


async def _get(parts: SplitResult, address: str) -> bytes:
    """The document at an address that was looked up and checked."""
    literal = f"[{address}]" if ":" in address else address
    port = f":{parts.port}" if parts.port is not None else ""
    url = f"{parts.scheme}://{literal}{port}{parts.path}" + (f"?{parts.query}" if parts.query else "")
    async with (
        # Without the environment: a proxy would look the name up again, and may reach what this server must not.
        httpx2.AsyncClient(timeout=_TIMEOUT, follow_redirects=False, trust_env=False) as http,
        http.stream(
            "GET",
            url,
            headers={"Host": parts.netloc, "Accept": "application/json"},
            # The certificate must be that of the name, though the connection goes to the address.
            extensions={"sni_hostname": parts.hostname},
        ) as answer,
    ):
        if answer.status_code != 200:
            raise ValueError("there is no document")
        body = bytearray()
        async for part in answer.aiter_bytes():
            body += part
            if len(body) > _LARGEST_DOCUMENT:
                raise ValueError("the document is too long")
    return bytes(body)


# -- the provider -----------------------------------------------------------------------------------------------------


CONSENT = "/authorize/consent"
_LONGEST_STATE = 4096
_CHALLENGE_LENGTH = 43
"""Of the SHA-256 of a verifier in base64url (RFC 7636)."""
_LONGEST_TOKEN = 256
_UNAVAILABLE = "Sign-ins cannot be looked up just now."


def grant_of(person: Person, until: float, scopes: tuple[str, ...] = (SCOPE,)) -> Grant:
    """What the callers are to know of a person. The groups are those of this moment, and no older ones count."""
    return Grant(person.name, person.subject, int(until), scopes, frozenset(person.groups), time.time())


class OwnAccessTokens:
    """Checks the access tokens that this very server has issued."""

    def __init__(self, grants: OAuthGrants, issuer: str, resource: str) -> None:
        self.issuer = issuer
        self.resource = resource
        self._grants = grants

    @property
    def look_every(self) -> float:
        """Never before it expires: the streams of whoever is removed are cut at once, and a client that gives back its
        own token has its own streams to close."""
        return math.inf

    async def check(self, token: str) -> Grant | None:
        """What the token grants; None if it is not good. UpstreamUnavailable while that cannot be said."""
        if len(token) > _LONGEST_TOKEN or not token.isascii():
            return None
        try:
            # Looked up for each request: what has ended has ended at once.
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
        """`stolen` is called with the name of a person of whom a code or refresh token has come a second time."""
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
        return None if stored is None else KnownClient.model_validate_json(stored)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        try:
            known = client_from(client_info.model_dump(mode="json"), client_info.client_id, self._issuer)
        except ValueError as error:
            raise RegistrationError("invalid_redirect_uri", str(error)) from None
        await asyncio.to_thread(self._grants.register, known.client_id, known.model_dump_json(exclude_none=True))
        # The SDK answers with this very object: the client is told what it is here, and that it needs no secret.
        client_info.client_secret = client_info.client_secret_expires_at = None
        for name in ("client_name", "token_endpoint_auth_method", "grant_types", "response_types", "scope"):
            setattr(client_info, name, getattr(known, name))

    # -- codes ----------------------------------------------------------------------------------------------------

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        """The page on which a person decides. Nothing is remembered until they have."""
        if params.resource is not None and params.resource.rstrip("/") != self._resource:
            raise AuthorizeError("invalid_target", f"Tokens are for {self._resource} alone.")
        if len(params.code_challenge) != _CHALLENGE_LENGTH:
            raise AuthorizeError("invalid_request", "code_challenge must be the SHA-256 of the verifier.")
        if params.state is not None and len(params.state) > _LONGEST_STATE:
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
            # Its time is looked at when it is redeemed: one that comes a second time counts as that, however late.
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
        return self._tokens(await asyncio.to_thread(self._grants.rotate, refresh_token.token, scopes))

    def _tokens(self, made: NewTokens | Reused | None) -> OAuthToken:
        if isinstance(made, Reused):
            self._stolen(made.name)
        if not isinstance(made, NewTokens):
            raise TokenError("invalid_grant", "It has been used before, or has ended.")
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
        """Ends everything of the consent that the token came of."""
        grants, text = self._grants, token.token
        found = await asyncio.to_thread(lambda: grants.access_token(text) or grants.refresh_token(text))
        if found is not None:
            await asyncio.to_thread(self._grants.end, found.granted.grant_id)


# -- what programs ask ------------------------------------------------------------------------------------------------

NO_STORE = {"Cache-Control": "no-store"}
_LARGEST_FORM = 64 << 10
_MOST_REGISTRATIONS = 60
"""Clients of one address that register within a minute; the people of a hosted client come from one address."""
Handler = Callable[[Request], Awaitable[Response]]


class ClientEndpoints:
    """The addresses that clients themselves ask: metadata, tokens, registration and revocation."""

    def __init__(self, provider: Provider, origin: str, resource: str) -> None:
        self._provider = provider
        self._origin = origin
        self._resource = resource
        self._authenticator = ClientAuthenticator(provider)
        self._token = TokenHandler(provider, self._authenticator)
        options = ClientRegistrationOptions(enabled=True, default_scopes=[SCOPE])
        self._registration = RegistrationHandler(provider, options)
        self._registrations = FailureLimit(_MOST_REGISTRATIONS)

    def routes(self) -> list[Route]:
        metadata = MetadataHandler(self._metadata()).handle
        return [
            self._for_clients("/.well-known/oauth-authorization-server", metadata, "GET"),
            self._for_clients("/token", self._give_tokens, "POST"),
            self._for_clients("/register", self._register, "POST"),
            self._for_clients("/revoke", self._revoke, "POST"),
        ]

    def _metadata(self) -> OAuthMetadata:
        return OAuthMetadata.model_validate(
            {
                # As a text: clients compare issuers letter by letter.
                "issuer": self._origin,
                "authorization_endpoint": f"{self._origin}/authorize",
                "token_endpoint": f"{self._origin}/token",
                "registration_endpoint": f"{self._origin}/register",
                "revocation_endpoint": f"{self._origin}/revoke",
                "scopes_supported": [SCOPE],
                "response_types_supported": ["code"],
                "grant_types_supported": ["authorization_code", "refresh_token"],
                "token_endpoint_auth_methods_supported": ["none"],
                "revocation_endpoint_auth_methods_supported": ["none"],
                "code_challenge_methods_supported": ["S256"],
                "client_id_metadata_document_supported": True,
                "authorization_response_iss_parameter_supported": True,
            }
        )

    def _for_clients(self, path: str, handler: Handler, method: str) -> Route:
        """An address for programs, also for such as run in the page of another server."""

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except RateLimited as problem:
                headers = {**NO_STORE, "Retry-After": str(problem.retry_after)}
                return JSONResponse({"error": "invalid_request"}, 429, headers)
            except (OSError, ClaudeCodeError) as error:
                log.error("a request at %s cannot be answered: %s", path, error)
                return JSONResponse({"error": "temporarily_unavailable"}, 503, {**NO_STORE, "Retry-After": "5"})

        methods = [method, "OPTIONS"]
        return Route(path, bounded(cors_middleware(handle, methods)), methods=methods)

    async def _give_tokens(self, request: Request) -> Response:
        form = await request.form()
        if has_repeated(form.multi_items()):
            return _refusal("invalid_request", "something is named twice")
        resource = form.get("resource", self._resource)
        if not isinstance(resource, str) or resource.rstrip("/") != self._resource:
            return _refusal("invalid_target", f"tokens are for {self._resource} alone")
        answer: Response = await self._token.handle(request)
        return answer

    async def _register(self, request: Request) -> Response:
        address = address_of(request)
        self._registrations.check(address)
        # Counted before it is awaited: many at the same moment are many.
        self._registrations.failed(address)
        return await self._registration.handle(request)

    async def _revoke(self, request: Request) -> Response:
        """RFC 7009. The SDK's own handler wants a secret, which clients do not have here."""
        try:
            client = await self._authenticator.authenticate_request(request)
        except AuthenticationError:
            return JSONResponse({"error": "invalid_client"}, 401, NO_STORE)
        token = (await request.form()).get("token")
        if not isinstance(token, str):
            return _refusal("invalid_request", "there is no token")
        found = await self._provider.load_access_token(token) or await self._provider.load_refresh_token(client, token)
        if found is not None and found.client_id == client.client_id:
            await self._provider.revoke_token(found)
        return Response(status_code=200, headers=NO_STORE)


def _refusal(error: str, description: str) -> Response:
    return JSONResponse({"error": error, "error_description": description}, 400, NO_STORE)


def has_repeated(items: Sequence[tuple[str, object]]) -> bool:
    """RFC 6749, 3.1: nothing is named twice. Otherwise two readers of one request could each see another."""
    return len({name for name, _ in items}) != len(items)


def address_of(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def bounded(app: ASGIApp) -> ASGIApp:
    return RequestBodyLimitMiddleware(app, _LARGEST_FORM)
