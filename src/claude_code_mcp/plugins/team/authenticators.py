"""The authenticators for people: the operator's OAuth issuer, the embedded authorization server, and a trusted
proxy."""

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from ...core.config import Settings
from ...core.errors import InvalidArgument
from ...server.transports.authenticator import AdmittedCaller, Authenticator, Challenge, HttpService, SignInPage
from ...server.transports.callers import SCOPE, Callers
from ...server.transports.http import PATH, Address, endpoint_url
from ...server.transports.identity import Identity
from ...server.transports.running_calls import AccessUntil, FailureLimit, caller_address
from .access_tokens import AccessTokens, Grant, TokenIssuer, check_oauth_settings
from .people import People
from .person_names import PersonNames
from .provider_sign_in import ProviderSignIn
from .proxy_users import ProxyUsers, check_proxy_settings, user_of
from .settings import TeamSettings

if TYPE_CHECKING:
    from .authorization.authorization_server import AuthorizationServer
    from .authorization.clients import ClientDocuments

log = logging.getLogger(__name__)

_MAX_UNKNOWN_TOKENS = 60
"""Unknown tokens per address and minute; more are refused."""
_PROXY = "proxy"
_PROXY_SECONDS = 12 * 3600.0
"""Seconds after which a person admitted by a proxy signs in again, which the page does automatically."""


def authenticators(settings: Settings) -> Sequence[Authenticator]:
    """The authenticators in the settings. Raises InvalidArgument if they cannot be used."""
    found: list[Authenticator] = []
    if settings.oauth:
        found.append(EmbeddedAuthenticator(settings))
    if settings.oauth_issuer is not None:
        found.append(IssuerAuthenticator(settings))
    if settings.proxy_user_header is not None:
        found.append(ProxyAuthenticator(settings))
    if found:
        check_oauth_settings(settings)
        check_proxy_settings(settings)
    return found


class PeopleAuthenticator(Authenticator):
    """An authenticator that admits people."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.people: People | None = None
        """Set when the server has its address."""

    async def admit_grant(self, grant: Grant, until: float) -> Identity | None:
        """The caller for a person with this grant, valid at least until then; None if they cannot be admitted. Raises
        UpstreamUnavailable if that cannot be determined now."""
        return await self.people.admit_grant(grant, until) if self.people is not None else None

    def has(self, identity: Identity) -> bool:
        return self.people is not None and self.people.has(identity)

    async def stands(self, identity: Identity) -> bool:
        if self.people is None:
            return False
        await self.people.take_back(identity)
        return self.people.expires_at(identity) is not None

    def access_of(self, identity: Identity) -> AccessUntil | None:
        people = self.people
        until = people.expires_at(identity) if people is not None else None
        if people is None or until is None:
            return None

        async def recheck() -> float | None:
            return people.expires_at(identity)

        return AccessUntil(until, until, recheck)

    def scopes_of(self, identity: Identity) -> Collection[str]:
        return self.people.scopes_of(identity) if self.people is not None else ()

    def knows(self, name: str) -> bool:
        return self.people is not None and self.people.knows(name)

    def remembers(self, name: str) -> bool:
        return self.people is not None and self.people.remembers(name)

    def drop(self, names: Collection[str]) -> list[Identity]:
        return self.people.drop(names) if self.people is not None else []


class TokenAuthenticator(PeopleAuthenticator):
    """Admits people with access tokens of one issuer."""

    def __init__(self, settings: Settings, scopes: tuple[str, ...]) -> None:
        """`scopes` are required in each token."""
        super().__init__(settings)
        self._scopes = scopes
        self._tokens: TokenIssuer | None = None
        self._unknown_tokens = FailureLimit(_MAX_UNKNOWN_TOKENS)
        self._doubted = asyncio.Lock()
        """Held while the issuer is asked about a token from an address with too many unknown ones."""

    def take(self, tokens: TokenIssuer, people: People) -> None:
        """Admits these people with these tokens from now on."""
        self._tokens, self.people = tokens, people

    def challenge(self) -> Challenge | None:
        tokens = self._tokens
        return Challenge(tokens.issuer, tokens.resource, self._scopes) if tokens is not None else None

    async def by_token(self, token: str) -> AdmittedCaller | None:
        tokens, people = self._tokens, self.people
        if tokens is None or people is None:
            return None
        grant = await self._check(token, tokens)
        found = await people.admit_grant(grant, grant.expires_at) if grant is not None else None
        if grant is None or found is None:
            return None

        async def recheck() -> float | None:
            now = await tokens.check(token)
            return now.counts_until if now is not None else None

        access = AccessUntil(grant.counts_until, tokens.recheck_interval, recheck)
        return AdmittedCaller(found, access, people.scopes_of(found))

    async def _check(self, token: str, tokens: TokenIssuer) -> Grant | None:
        """The grant of an access token. Raises RateLimited for an unknown token from an address that sent too many.
        Valid tokens are accepted from there too, because others may share the address."""
        address = caller_address()
        flooding = self._unknown_tokens.is_over(address)
        if flooding and tokens.must_ask(token):
            # A sender without a token can invent any number of them, and each causes a request to the issuer. All such
            # addresses share one queue, in which a valid token gets its turn.
            async with self._doubted:
                grant = await tokens.check(token)
        else:
            grant = await tokens.check(token)
        if grant is None and flooding:
            self._unknown_tokens.check(address)
        if grant is None:
            self._unknown_tokens.failed(address)
        return grant


class IssuerAuthenticator(TokenAuthenticator):
    """Access tokens of the operator's OAuth issuer. With a client id, people also sign in there for the console."""

    def __init__(self, settings: Settings) -> None:
        self._own = settings.section(TeamSettings)
        super().__init__(settings, self._own.oauth_scopes)
        self._issued: AccessTokens | None = None
        self._sign_in: ProviderSignIn | None = None

    def check(self, address: Address) -> None:
        if address.unspecified and self._settings.web_url is None:
            raise InvalidArgument(
                "Access tokens are issued for the public address of this server: set "
                "CLAUDE_CODE_MCP_WEB_URL to it, such as https://claude.example.org."
            )

    def serve(self, callers: Callers, service: HttpService, address: Address) -> None:
        issued = self._issued = AccessTokens(self._settings, endpoint_url(self._settings, address))
        names = PersonNames(service.state)
        self.take(issued, People(issued.issuer, service.admit, service.assign, names, callers.is_taken))

    def routes(self, page: SignInPage | None) -> Sequence[BaseRoute]:
        if page is None or self._issued is None or self._own.oauth_client_id is None:
            return ()
        self._sign_in = ProviderSignIn(self._settings, self._issued, self.admit_grant, page)
        return self._sign_in.routes()

    @property
    def offers_sign_in(self) -> bool:
        return self._own.oauth_client_id is not None

    async def sign_out_address(self, identity: Identity) -> str | None:
        if self._sign_in is None or not self.has(identity):
            return None
        return await self._sign_in.sign_out_address()


class EmbeddedAuthenticator(TokenAuthenticator):
    """Access tokens of this server's own authorization server, where invited people sign in with passkeys."""

    def __init__(self, settings: Settings, documents: "ClientDocuments | None" = None) -> None:
        """`documents` reads client documents; for tests."""
        super().__init__(settings, (SCOPE,))
        self._documents = documents
        self._origin: str | None = None
        self._callers: Callers | None = None
        self._service: HttpService | None = None
        self._server: AuthorizationServer | None = None

    def check(self, address: Address) -> None:
        from .authorization.origin import own_origin  # noqa: PLC0415 - its libraries are an extra

        own_origin(self._settings, address)

    def serve(self, callers: Callers, service: HttpService, address: Address) -> None:
        from .authorization.authorization_server import people_of  # noqa: PLC0415
        from .authorization.origin import own_origin  # noqa: PLC0415

        origin = self._origin = own_origin(self._settings, address)
        self._callers, self._service = callers, service
        self.take(*people_of(service, origin, f"{origin}{PATH}", callers.is_taken))

    def origin(self) -> str | None:
        return self._origin

    def routes(self, page: SignInPage | None) -> Sequence[BaseRoute]:
        from .authorization.authorization_server import AuthorizationServer  # noqa: PLC0415

        assert self._origin is not None
        assert self._callers is not None
        assert self._service is not None
        link = page.link_for if page is not None else None
        self._server = AuthorizationServer(
            self._service, self, self._callers, self._origin, link, documents=self._documents
        )
        return self._server.routes()

    @property
    def offers_sign_in(self) -> bool:
        return True

    async def follow(self) -> None:
        if self._server is not None:
            await self._server.follow()

    def end_person(self, name: str, subject: str | None) -> None:
        """Ends everything that a person has open; with a `subject`, permanently. Awaits nothing: a request that is
        being admitted now is found among the running ones, or is refused."""
        assert self._callers is not None
        assert self._service is not None
        for identity in self.people.end(name, subject) if self.people is not None else ():
            self._callers.end(identity, "renewed" if subject is None else "removed", self._service.audit)


class ProxyAuthenticator(PeopleAuthenticator):
    """People named by a trusted proxy in a header of each request."""

    def serve(self, callers: Callers, service: HttpService, address: Address) -> None:
        names = PersonNames(service.state)
        self.people = People(_PROXY, service.admit, service.assign, names, callers.is_taken)

    def wrap(self, app: ASGIApp) -> ASGIApp:
        return ProxyUsers(app, self._settings)

    def is_named_in(self, request: Request) -> bool:
        return user_of(request.scope) is not None

    def must_be_named(self, identity: Identity) -> bool:
        return self.has(identity)

    async def by_request(self, request: Request) -> Identity | None:
        user = user_of(request.scope)
        return None if user is None else await self.by_name(*user, _PROXY_SECONDS)

    async def by_name(self, name: str, groups: Collection[str], lasts: float) -> Identity | None:
        """The person with this name, for this many seconds; None if they cannot be admitted."""
        now = time.time()
        return await self.admit_grant(Grant(name, name, int(now + lasts), (), frozenset(groups), now), now + lasts)
