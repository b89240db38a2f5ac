"""The embedded authorization server: its addresses, its forms, and the effects of removing a person.

The handlers of the MCP SDK serve the addresses of OAuth 2.1 (`/authorize`, `/token`, `/register`, `/revoke` and the
metadata of RFC 8414). This module adds the page on which a person allows a client, `/sign-in` for the console, and
`/invite` for invitation links. All of them are at the origin in the settings: no header of a request determines it.

A form is accepted if the browser reports that it comes from a page of this server, and if it contains the secret of
the page that this browser was given. Every decision is signed with a passkey for this one request.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mcp.server.auth.handlers.authorize import AuthorizationHandler
from mcp.server.auth.handlers.metadata import MetadataHandler
from mcp.server.auth.handlers.register import RegistrationHandler
from mcp.server.auth.handlers.token import TokenHandler
from mcp.server.auth.middleware.client_auth import AuthenticationError, ClientAuthenticator
from mcp.server.auth.provider import construct_redirect_uri
from mcp.server.auth.routes import cors_middleware
from mcp.server.auth.settings import ClientRegistrationOptions
from mcp.server.transport_security import RequestBodyLimitMiddleware
from mcp.shared.auth import OAuthMetadata
from pydantic import AnyUrl
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route, request_response
from starlette.types import ASGIApp

from ....core.errors import ClaudeCodeError, RateLimited, UpstreamUnavailable
from ....core.model.events import AuditEvent, AuditKind
from ....core.state.database import hash_of
from ....core.state.state_directory import database_in
from ....core.transcripts.watched_files import WatchedFile
from ....server.transports.authenticator import HttpService
from ....server.transports.callers import SCOPE, Callers
from ....server.transports.http import PATH
from ....server.transports.identity import Identity
from ....server.transports.running_calls import FailureLimit
from ..access_tokens import Grant, TokenIssuer
from ..invited_people import InvitedPeople, Person, change_mark
from ..oauth_grants import Consent, OAuthGrants
from ..people import People
from .clients import ClientDocuments, is_at, redirect_origin
from .pages import consent_page, invite_page, message, passkey_page, refused_page, sign_in_page, welcome_page
from .passkeys import Passkeys, SealedRequests
from .provider import CONSENT, OwnAccessTokens, Provider, grant_of

if TYPE_CHECKING:
    from ..authenticators import EmbeddedAuthenticator

log = logging.getLogger(__name__)

_SIGN_IN, _INVITE, _PASSKEY = "/sign-in", "/invite", "/invite/passkey"
_SIGNED_IN_FOR = 12 * 3600.0
_MAX_FORM = 64 << 10
_MAX_FAILURES, _MAX_REGISTRATIONS, _MAX_DOCUMENTS, _MAX_EXCHANGES = 60, 60, 60, 600
"""Per address and minute: failed sign-ins, client registrations, client documents read, and tokens requested or
revoked. None of these secrets can be guessed; the limits protect against load. Whole offices, and the users of a hosted
client, share an address, and a client requests a token every ten minutes."""
_NO_STORE = {"Cache-Control": "no-store"}

Handler = Callable[[Request], Awaitable[Response]]
Link = Callable[[Identity], Awaitable[str]]


class _Stopped(Exception):
    """A page that explains why a flow cannot continue."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


class _PasskeyForms:
    """Common parts of forms signed with a passkey: they count once, in the browser that received them."""

    def __init__(self, requests: SealedRequests, passkeys: Passkeys, audit: Callable[[AuditEvent], None]) -> None:
        self._requests = requests
        self._passkeys = passkeys
        self._audit = audit
        self.failures = FailureLimit(_MAX_FAILURES)

    def ceremony(self, request: Request, sealed: str) -> tuple[dict[str, str], str, str]:
        """The hidden fields of a form, the passkey request for its script, and the browser that it is for."""
        browser = self._requests.browser(request)
        hidden = {"request": sealed, "secret": self._requests.form_secret(sealed, browser)}
        return hidden, self._passkeys.request_options(self._requests.challenge(request, sealed, browser)), browser

    def opened(self, sealed: str, purpose: str) -> Mapping[str, Any]:
        asked = self._requests.open(sealed)
        if asked is None or asked.get("purpose") != purpose:
            raise _Stopped(_over())
        return asked

    async def sent(self, request: Request, purpose: str) -> tuple[FormData, str, Mapping[str, Any]]:
        form = await request.form()
        sealed = _text(form.get("request"))
        asked = self.opened(sealed, purpose)
        if not self._requests.is_of_browser(request, sealed, _text(form.get("secret"))):
            raise _Stopped(message("Request rejected", "This sign-in was started in another browser.", 403))
        return form, sealed, asked

    async def signed(self, request: Request, form: FormData, sealed: str) -> Person:
        """The person who signed exactly this request, which is then used up."""
        self.failures.check(_address(request))
        person = await self._passkeys.person(_text(form.get("credential")), self._requests.challenge(request, sealed))
        if person is None:
            self.failures.failed(_address(request))
            self._audit(AuditEvent(AuditKind.AUTH_FAILED, "unknown"))
            raise _Stopped(message("Unknown passkey", "Nothing was approved. Try again.", 403))
        # After the signature and without an await in between: of two valid uses only one counts.
        if not self._requests.use(sealed):
            raise _Stopped(_over())
        return person


class _Invitations:
    """The pages on which an invited person creates a passkey."""

    def __init__(
        self,
        people: InvitedPeople,
        requests: SealedRequests,
        passkeys: Passkeys,
        forms: _PasskeyForms,
        audit: Callable[[AuditEvent], None],
        welcome: Callable[[str], Response],
    ) -> None:
        """`welcome` creates the page for a person who now has a passkey."""
        self._people = people
        self._requests = requests
        self._passkeys = passkeys
        self._forms = forms
        self._audit = audit
        self._welcome = welcome

    async def show(self, _: Request) -> Response:
        return invite_page(_INVITE)

    async def offer_passkey(self, request: Request) -> Response:
        invite = _text((await request.form()).get("invite"))
        person, existing = await self._invited(request, invite)
        sealed = self._requests.seal({"purpose": "passkey", "invite": hash_of(invite)})
        hidden, _, browser = self._forms.ceremony(request, sealed)
        options = self._passkeys.creation_options(person, existing, self._requests.challenge(request, sealed, browser))
        response = passkey_page(_PASSKEY, person.name, {**hidden, "invite": invite}, options)
        self._requests.keep_browser(response, browser)
        return response

    async def add_passkey(self, request: Request) -> Response:
        form, sealed, asked = await self._forms.sent(request, "passkey")
        invite = _text(form.get("invite"))
        if asked["invite"] != hash_of(invite):
            raise _Stopped(_over())
        challenge = self._requests.challenge(request, sealed)
        person = await self._passkeys.add(invite, _text(form.get("credential")), challenge)
        if person is None:
            self._forms.failures.failed(_address(request))
            raise _Stopped(message("Something went wrong", "The passkey was not created. Open your link again.", 400))
        self._audit(AuditEvent(AuditKind.PASSKEY_ADDED, person.name))
        return self._welcome(person.name)

    async def _invited(self, request: Request, invite: str) -> tuple[Person, list[bytes]]:
        self._forms.failures.check(_address(request))
        found = await asyncio.to_thread(self._people.by_invite, invite)
        if found is None:
            self._forms.failures.failed(_address(request))
            text = "It was already used or has expired. Ask for a new one."
            raise _Stopped(message("This link is no longer valid", text, 410))
        return found


def people_of(
    service: HttpService, origin: str, resource: str, is_taken: Callable[[str], bool]
) -> tuple[TokenIssuer, People]:
    """The people invited to the authorization server at this origin, and the validation of its tokens. Blocks on the
    disk."""
    database = database_in(service.settings.state_dir)
    invited = InvitedPeople(database)

    async def returning(name: str) -> tuple[Grant, float] | None:
        """A person who signed in before this server started, and until when that is valid."""
        try:
            found = await asyncio.to_thread(invited.signed_in, name)
        except OSError:
            raise UpstreamUnavailable("The sign-in state cannot be read at the moment.") from None
        return None if found is None else (grant_of(*found), found[1])

    tokens = OwnAccessTokens(OAuthGrants(database), origin, resource)
    # The invitations determine who owns a name.
    people = People(origin, service.admit, service.assign, None, is_taken, returning, invited.groups())
    return tokens, people


class AuthorizationServer:
    """The authorization server of one origin."""

    def __init__(
        self,
        service: HttpService,
        authenticator: "EmbeddedAuthenticator",
        callers: Callers,
        origin: str,
        link: Link | None,
        *,
        documents: ClientDocuments | None = None,
    ) -> None:
        """`origin` is this server's address for people and clients. `authenticator` admits its people. `link` creates a
        one-time link to the console; None without a console. Blocks on the disk."""
        self._service = service
        self._authenticator = authenticator
        self._callers = callers
        self._origin = origin
        self._link = link
        self._state_dir = service.settings.state_dir
        database = database_in(self._state_dir)
        self._people, self._grants = InvitedPeople(database), OAuthGrants(database)
        self._known = self._people.names()
        self._requests = SealedRequests(origin)
        self.resource = f"{origin}{PATH}"
        passkeys, home = Passkeys(self._people, origin), f"{origin}/" if link is not None else None
        self._forms = _PasskeyForms(self._requests, passkeys, service.audit)
        welcome = partial(welcome_page, resource=self.resource, console=home)
        self._invitations = _Invitations(self._people, self._requests, passkeys, self._forms, service.audit, welcome)
        self._documents = documents = documents or ClientDocuments(origin)
        self._provider = Provider(self._grants, documents, self._requests, origin, self.resource, self._end_stolen)
        self._registrations, self._readings = FailureLimit(_MAX_REGISTRATIONS), FailureLimit(_MAX_DOCUMENTS)
        self._exchanges = FailureLimit(_MAX_EXCHANGES)
        self._people.serve_at(origin)
        log.info("people sign in at %s; their clients connect to %s", origin, self.resource)

    # -- added and removed people ---------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Ends everything of removed people, for as long as this runs."""
        mark = await asyncio.to_thread(change_mark, self._state_dir)
        async with WatchedFile(str(mark), lambda: None) as watched:
            while True:
                # In this order, so that a change from here on is noticed again.
                watched.clear()
                await watched.watch_again()
                try:
                    self._apply(await asyncio.to_thread(self._people.names))
                    await self._end_what_was_left()
                except OSError as error:
                    # An error is not an empty list. Removed people's tokens are refused anyway, because each request
                    # looks them up.
                    log.error("cannot read who was removed, or could not end their sessions: %s", error)
                await watched.wait()

    def _apply(self, now: Mapping[str, str]) -> None:
        before, self._known = self._known, dict(now)
        removed, added = before.keys() - now.keys(), now.keys() - before.keys()
        for subject in removed:
            self._authenticator.end_person(before[subject], subject)
        if removed or added:
            details = {
                "added": sorted(now[subject] for subject in added),
                "removed": sorted(before[subject] for subject in removed),
            }
            log.warning("the list of people changed: %s", details)
            self._service.audit(AuditEvent(AuditKind.CALLERS_CHANGED, "operator", details=details))

    async def _end_what_was_left(self) -> None:
        """Ends what removed people have on the machines of a fleet, which continue without this server. Includes people
        found by `_apply`, whose removal may have been interrupted."""
        if self._callers.remove is None:
            return
        for name in await asyncio.to_thread(self._people.left_by_removed):
            await self._callers.remove(name)
            # Last: after a failure or a stop of this server, the next change or the next server repeats it.
            await asyncio.to_thread(self._people.note_ended, name)

    def _end_stolen(self, name: str) -> None:
        """The thief of a token may be connected with another token of the same consent."""
        log.error("a code or refresh token of %s was used twice: all tokens of that consent are revoked", name)
        self._service.audit(AuditEvent(AuditKind.GRANT_STOLEN, name))
        self._authenticator.end_person(name, None)

    # -- routes ---------------------------------------------------------------------------------------------------

    def routes(self) -> Sequence[BaseRoute]:
        invitations, authenticator = self._invitations, ClientAuthenticator(self._provider)
        authorization, token = AuthorizationHandler(self._provider), TokenHandler(self._provider, authenticator)
        registration = RegistrationHandler(
            self._provider, ClientRegistrationOptions(enabled=True, default_scopes=[SCOPE])
        )

        async def authorize(request: Request) -> Response:
            return await self._authorize(request, authorization)

        async def give_tokens(request: Request) -> Response:
            return await self._give_tokens(request, token)

        async def register(request: Request) -> Response:
            return await self._register(request, registration)

        async def revoke(request: Request) -> Response:
            return await self._revoke(request, authenticator)

        metadata = MetadataHandler(self._metadata()).handle
        routes = [
            self._for_clients("/.well-known/oauth-authorization-server", metadata, "GET"),
            self._for_clients("/token", give_tokens, "POST"),
            self._for_clients("/register", register, "POST"),
            self._for_clients("/revoke", revoke, "POST"),
            self._for_people("/authorize", authorize, "GET"),
            self._for_people(CONSENT, self._show_consent, "GET"),
            self._for_people(CONSENT, self._decide, "POST"),
            self._for_people(_INVITE, invitations.show, "GET"),
            self._for_people(_INVITE, invitations.offer_passkey, "POST"),
            self._for_people(_PASSKEY, invitations.add_passkey, "POST"),
        ]
        if self._link is not None:
            routes.append(self._for_people(_SIGN_IN, self._show_sign_in, "GET"))
            routes.append(self._for_people(_SIGN_IN, self._sign_in, "POST"))
        return routes

    def _metadata(self) -> OAuthMetadata:
        return OAuthMetadata.model_validate(
            {
                # As a string: clients compare issuers character by character.
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
        """A route for programs, including those in pages of other origins."""

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except RateLimited as problem:
                headers = {**_NO_STORE, "Retry-After": str(problem.retry_after)}
                return JSONResponse({"error": "invalid_request"}, 429, headers)
            except (OSError, ClaudeCodeError) as error:
                log.error("a request at %s cannot be answered: %s", path, error)
                return JSONResponse({"error": "temporarily_unavailable"}, 503, {**_NO_STORE, "Retry-After": "5"})

        methods = [method, "OPTIONS"]
        return Route(path, _bounded(cors_middleware(handle, methods)), methods=methods)

    def _for_people(self, path: str, handler: Handler, method: str) -> Route:
        """A route for browsers. Forms must come from a page of this server."""

        async def handle(request: Request) -> Response:
            if method == "POST" and not self._is_from_own_page(request):
                return message("Request rejected", "It was not sent from a page of this server.", 403)
            if method == "GET" and self._is_elsewhere(request):
                query = f"?{request.url.query}" if request.url.query else ""
                return RedirectResponse(f"{self._origin}{path}{query}", 303, _NO_STORE)
            try:
                return await handler(request)
            except _Stopped as stopped:
                return stopped.response
            except RateLimited as problem:
                response = message("Wait a moment", problem.message, 429)
                response.headers["Retry-After"] = str(problem.retry_after)
                return response
            except (OSError, ClaudeCodeError) as error:
                log.error("a request at %s cannot be answered: %s", path, error)
                return message(
                    "Temporarily unavailable", "This is temporarily unavailable. Try again in a moment.", 503
                )

        return Route(path, _bounded(request_response(handle)), methods=[method])

    def _is_elsewhere(self, request: Request) -> bool:
        """Whether a browser on this machine uses a different host name from the one its passkeys are bound to. Behind a
        proxy the name in a request is meaningless."""
        if self._service.settings.web_url is not None:
            return False
        return request.headers.get("host") != urlsplit(self._origin).netloc

    def _is_from_own_page(self, request: Request) -> bool:
        site = request.headers.get("sec-fetch-site", "same-origin")
        return request.headers.get("origin") == self._origin and site == "same-origin"

    # -- requests of clients --------------------------------------------------------------------------------------

    async def _authorize(self, request: Request, handler: AuthorizationHandler) -> Response:
        if _has_repeated(request.query_params.multi_items()):
            return message("Request rejected", "The request has a duplicate parameter.", 400)
        if self._is_own(request.query_params.get("redirect_uri", "")):
            # Checked here too: a client that has registered a port on the person's own machine may use any other port.
            return message("This client cannot sign in", "It asks to redirect you to a page of this server.", 400)
        self._count_reading(request, request.query_params.get("client_id"))
        response = await handler.handle(request)
        location = response.headers.get("location")
        if location is None:
            # Never redirected to an address that is not the client's: the person sees the error instead.
            return message(
                "This client cannot sign in",
                "It is not registered here, or it asks to redirect you to an address that it has not registered.",
                400,
            )
        if location.startswith(f"{self._origin}{CONSENT}?"):
            return response
        # A refusal also identifies the issuer (RFC 9207).
        location = construct_redirect_uri(location, iss=self._origin)
        if urlsplit(location).scheme != "http":
            # Anyone can register any address: only a program on the person's own machine is redirected to without their
            # consent (RFC 9700, 4.11.2). Otherwise a link to this server would be an open redirect.
            return refused_page(location)
        response.headers["location"] = location
        return response

    def _count_exchange(self, request: Request) -> None:
        """Raises RateLimited for an address that requests too many tokens. Counted before the form is read and before
        any await, so that concurrent requests count too."""
        self._exchanges.check(_address(request))
        self._exchanges.failed(_address(request))

    async def _give_tokens(self, request: Request, handler: TokenHandler) -> Response:
        self._count_exchange(request)
        form = await request.form()
        if _has_repeated(form.multi_items()):
            return _refusal("invalid_request", "a parameter is given twice")
        resource = form.get("resource", self.resource)
        if not isinstance(resource, str) or resource.rstrip("/") != self.resource:
            return _refusal("invalid_target", f"tokens are issued only for {self.resource}")
        self._count_reading(request, form.get("client_id"))
        answer: Response = await handler.handle(request)
        return answer

    def _is_own(self, address: str) -> bool:
        """Whether an address belongs to this server, in any spelling."""
        try:
            return is_at(str(AnyUrl(address)), self._origin)
        except ValueError:
            return False

    def _count_reading(self, request: Request, client_id: object) -> None:
        """Raises RateLimited for an address that caused too many document reads: each is a request to another host and
        takes a slot that others wait for."""
        if isinstance(client_id, str) and self._documents.must_read(client_id):
            self._readings.check(_address(request))
            # Counted before the await, so that concurrent requests count too.
            self._readings.failed(_address(request))

    async def _register(self, request: Request, handler: RegistrationHandler) -> Response:
        address = _address(request)
        self._registrations.check(address)
        # Counted before the await, so that concurrent requests count too.
        self._registrations.failed(address)
        return await handler.handle(request)

    async def _revoke(self, request: Request, authenticator: ClientAuthenticator) -> Response:
        """RFC 7009. The SDK's own handler requires a secret, which clients do not have here."""
        self._count_exchange(request)
        self._count_reading(request, (await request.form()).get("client_id"))
        try:
            client = await authenticator.authenticate_request(request)
        except AuthenticationError:
            return JSONResponse({"error": "invalid_client"}, 401, _NO_STORE)
        token = (await request.form()).get("token")
        if not isinstance(token, str):
            return _refusal("invalid_request", "the token is missing")
        found = await self._provider.load_access_token(token) or await self._provider.load_refresh_token(client, token)
        if found is not None and found.client_id == client.client_id:
            await self._provider.revoke_token(found)
        return Response(status_code=200, headers=_NO_STORE)

    # -- a person allows a client ---------------------------------------------------------------------------------

    async def _show_consent(self, request: Request) -> Response:
        sealed = request.query_params.get("request", "")
        asked = self._forms.opened(sealed, "consent")
        hidden, options, browser = self._forms.ceremony(request, sealed)
        redirect = str(asked["redirect"])
        response = consent_page(
            CONSENT, asked["name"], str(asked["client"]), redirect, redirect_origin(redirect), hidden, options
        )
        self._requests.keep_browser(response, browser)
        return response

    async def _decide(self, request: Request) -> Response:
        form, sealed, asked = await self._forms.sent(request, "consent")
        if (form.get("decision") or form.get("choice")) != "allow":
            if not self._requests.deny(sealed):
                raise _Stopped(_over())
            return self._back(asked, error="access_denied")
        person = await self._forms.signed(request, form, sealed)
        code = await asyncio.to_thread(self._grants.allow, self._consent(asked, person))
        if code is None:
            raise _Stopped(_over())
        details = {"client": asked["client"], "name": asked["name"], "redirect": asked["redirect"]}
        self._service.audit(AuditEvent(AuditKind.CLIENT_ALLOWED, person.name, details=details))
        return self._back(asked, code=code)

    def _consent(self, asked: Mapping[str, Any], person: Person) -> Consent:
        return Consent(
            person.subject,
            str(asked["client"]),
            (SCOPE,),
            self.resource,
            str(asked["redirect"]),
            bool(asked["given"]),
            str(asked["challenge"]),
        )

    def _back(self, asked: Mapping[str, Any], **answer: str) -> Response:
        location = construct_redirect_uri(str(asked["redirect"]), **answer, state=asked["state"], iss=self._origin)
        return RedirectResponse(location, 303, {**_NO_STORE, "Referrer-Policy": "no-referrer"})

    # -- the console ----------------------------------------------------------------------------------------------

    async def _show_sign_in(self, request: Request) -> Response:
        hidden, options, browser = self._forms.ceremony(request, self._requests.seal({"purpose": "console"}))
        response = sign_in_page(_SIGN_IN, hidden, options)
        self._requests.keep_browser(response, browser)
        return response

    async def _sign_in(self, request: Request) -> Response:
        form, sealed, _ = await self._forms.sent(request, "console")
        person = await self._forms.signed(request, form, sealed)
        until = grant_of(person, 0).issued_at + _SIGNED_IN_FOR
        identity = await self._authenticator.admit_grant(grant_of(person, until), until)
        if identity is None:
            raise _Stopped(message("You cannot sign in here", "Ask the operator of this server.", 403))
        await asyncio.to_thread(self._people.note_sign_in, person.subject, until)
        assert self._link is not None
        return RedirectResponse(await self._link(identity), 303, _NO_STORE)


def _over() -> Response:
    return message("Start again", "This request was already decided or has expired.", 400)


def _refusal(error: str, description: str) -> Response:
    return JSONResponse({"error": error, "error_description": description}, 400, _NO_STORE)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _has_repeated(items: Sequence[tuple[str, object]]) -> bool:
    """RFC 6749, 3.1: no parameter may be repeated, because two parsers could read different values."""
    return len({name for name, _ in items}) != len(items)


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def _bounded(app: ASGIApp) -> ASGIApp:
    return RequestBodyLimitMiddleware(app, _MAX_FORM)
