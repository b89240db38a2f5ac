"""The embedded authorization server for people: its pages and forms, and what follows when a person is removed.

The addresses are `/authorize` with the page on which a person allows a client, `/sign-in` for the console, and
`/invite`, where the link of an invitation leads; those that programs ask are `ClientEndpoints` of `provider.py`. All of
them are at one origin, which the settings name: no header of a request says where this server is.

A form counts if the browser says that it is from a page of this server, and if it has in it what only the page had that
this very browser was given. Every decision is signed with a passkey for this one request.

Pages are complete as they are sent. What a client says about itself is text in them: everything that is put in is
escaped, and the policy of each page allows the one script and the one style that are in it, by their hashes, and
nothing else. No page may be framed or kept. The script does what only a script can, which is to ask for a passkey; to
refuse a client takes none.
"""

import asyncio
import base64
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import urlsplit

from mcp.server.auth.handlers.authorize import AuthorizationHandler
from mcp.server.auth.provider import construct_redirect_uri
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route, request_response

from ...errors import ClaudeCodeError, RateLimited, UpstreamUnavailable
from ...model.events import AuditEvent, AuditKind
from ...server.transports.callers import SCOPE, Callers
from ...server.transports.http import PATH
from ...server.transports.rate_limits import FailureLimit
from ...service import Service
from ...state.invited_people import InvitedPeople, Person, change_mark
from ...state.oauth_grants import Consent, OAuthGrants
from ...state.sign_ins import Identity, hash_of
from ...state.state_directory import database_in
from ...store.following import WatchedFile
from ..answers import HEADERS
from .passkeys import Passkeys, SealedRequests
from .provider import (
    CONSENT,
    NO_STORE,
    ClientDocuments,
    ClientEndpoints,
    Handler,
    OwnAccessTokens,
    Provider,
    address_of,
    bounded,
    grant_of,
    has_repeated,
    redirect_origin,
)

log = logging.getLogger(__name__)

_STYLE = """
:root { color-scheme: light dark; --page: light-dark(#f7f6f3, #151514); --surface: light-dark(#ffffff, #1e1e1c);
  --line: light-dark(#dddad3, #3a3935); --text: light-dark(#1e1d1b, #eceae5); --muted: light-dark(#625f58, #aba79e);
  --accent: light-dark(#24569f, #9cc0f7); --on-accent: light-dark(#ffffff, #0e1b2e);
  --ask: light-dark(#7a4b00, #f3cb80); --ask-soft: light-dark(#fff3d9, #2f2714); --bad: light-dark(#a8231b, #f5a29b); }
*, *::before, *::after { box-sizing: border-box; }
body { margin: 0; min-height: 100vh; display: grid; place-items: center; padding: 1rem; background: var(--page);
  color: var(--text); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { width: 100%; max-width: 30rem; padding: 1.5rem; background: var(--surface); border: 1px solid var(--line);
  border-radius: 14px; }
h1 { margin: 0 0 .75rem; font-size: 1.25rem; line-height: 1.3; overflow-wrap: anywhere; }
p { margin: .75rem 0; }
dl { margin: 1rem 0; display: grid; gap: .75rem; }
dt { font-size: .875rem; color: var(--muted); }
dd { margin: 0; overflow-wrap: anywhere; }
code { font: .875em ui-monospace, "SF Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.caution { padding: .5rem .75rem; border-radius: 8px; background: var(--ask-soft); color: var(--ask); }
.problem { color: var(--bad); }
.problem:empty { display: none; }
.actions { display: flex; flex-wrap: wrap; gap: .5rem; margin-top: 1.25rem; }
button { min-height: 44px; padding: .5rem 1rem; border: 1px solid var(--line); border-radius: 10px; font: inherit;
  font-weight: 550; color: inherit; background: var(--surface); cursor: pointer; }
button.allow { background: var(--accent); border-color: var(--accent); color: var(--on-accent); }
button:disabled { opacity: .55; cursor: default; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
a { color: var(--accent); }
"""

_SCRIPT = """
"use strict";
const bytes = (text) => Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (c) => c.charCodeAt(0));
const text = (buffer) => btoa(String.fromCharCode(...new Uint8Array(buffer)))
  .replace(/\\+/g, "-").replace(/\\//g, "_").replace(/=+$/, "");
const form = document.querySelector("form");
const note = document.querySelector("[role=status]");
if (note) note.textContent = "";
const invited = document.querySelector("input[name=invite][data-from-link]");

async function made(options) {
  options.challenge = bytes(options.challenge);
  options.user.id = bytes(options.user.id);
  for (const known of options.excludeCredentials) known.id = bytes(known.id);
  const { id, type, rawId, response } = await navigator.credentials.create({ publicKey: options });
  return { id, type, rawId: text(rawId), response: {
    clientDataJSON: text(response.clientDataJSON), attestationObject: text(response.attestationObject) } };
}

async function signed(options) {
  options.challenge = bytes(options.challenge);
  options.allowCredentials = [];
  const { id, type, rawId, response } = await navigator.credentials.get({ publicKey: options });
  return { id, type, rawId: text(rawId), response: {
    clientDataJSON: text(response.clientDataJSON), authenticatorData: text(response.authenticatorData),
    signature: text(response.signature), userHandle: response.userHandle ? text(response.userHandle) : null } };
}

if (form && form.dataset.options) {
  form.addEventListener("submit", async (event) => {
    if (!event.submitter || event.submitter.value !== "allow") return;
    event.preventDefault();
    note.textContent = "";
    event.submitter.disabled = true;
    try {
      if (!window.PublicKeyCredential) throw new Error("this browser has no passkeys");
      const options = JSON.parse(form.dataset.options);
      form.elements.credential.value = JSON.stringify(await (options.user ? made(options) : signed(options)));
      form.elements.decision.value = "allow";
      form.submit();
    } catch (error) {
      note.textContent = `That did not work: ${error.message}`;
      event.submitter.disabled = false;
    }
  });
}
// The secret of a link is behind its #, so that it is in no log. It is taken out of the history too.
if (invited && location.hash.length > 1) {
  invited.value = location.hash.slice(1);
  history.replaceState(null, "", location.pathname);
  form.submit();
}
"""


_WITHOUT_SCRIPT = '<p class="problem" role="status">Passkeys need JavaScript, which is switched off here.</p>'
"""Taken away by the script as soon as it runs."""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_SCRIPT_HASH, _STYLE_HASH = _hash(_SCRIPT), _hash(_STYLE)


def page(title: str, body: str, status: int = 200, sends_to: str = "") -> HTMLResponse:
    """A page; `body` is markup. A form on it may lead to this server, and on to `sends_to`."""
    html = (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n<main>\n<h1>{escape(title)}</h1>\n{body}\n</main>\n<script>{_SCRIPT}</script>\n</html>\n"
    )
    policy = (
        f"default-src 'none'; script-src {_SCRIPT_HASH}; style-src {_STYLE_HASH}; base-uri 'none'; "
        # Browsers hold the answer to a form against this too: the client's address is where a decision leads.
        f"form-action 'self' {sends_to}".rstrip()
        + "; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    headers = {
        **HEADERS,
        # With `no-referrer` browsers would say of our own forms that they are from nowhere.
        "Referrer-Policy": "same-origin",
        # A client that has opened this in a window of its own must find it again when the browser comes back to it.
        "Cross-Origin-Opener-Policy": "unsafe-none",
        "Content-Security-Policy": policy,
        "Cache-Control": "no-store",
    }
    return HTMLResponse(html, status, headers)


def message(title: str, text: str, status: int = 200) -> HTMLResponse:
    return page(title, f"<p>{escape(text)}</p>", status)


def _form(action: str, hidden: Mapping[str, str], options: str, buttons: str) -> str:
    fields = "\n".join(f'<input type="hidden" name="{name}" value="{escape(value)}">' for name, value in hidden.items())
    return (
        f'<form method="post" action="{action}" data-options="{escape(options)}" autocomplete="off">\n{fields}\n'
        '<input type="hidden" name="credential" value="">\n<input type="hidden" name="decision" value="">\n'
        f'{_WITHOUT_SCRIPT}\n<div class="actions">\n{buttons}\n</div>\n</form>'
    )


def consent_page(
    action: str, name: str | None, client_id: str, redirect: str, sends_to: str, hidden: Mapping[str, str], options: str
) -> HTMLResponse:
    """Asks whether a client may work in the name of whoever signs."""
    shown = name or "a client without a name"
    facts = (
        ("It calls itself", escape(shown)),
        ("Its id", f"<code>{escape(client_id)}</code>"),
        ("You are sent back to", f"<code>{escape(redirect)}</code>"),
        ("It may", "<code>claude-code</code>: run Claude Code here in your name, see and answer your sessions"),
    )
    rows = "\n".join(f"<div><dt>{term}</dt><dd>{detail}</dd></div>" for term, detail in facts)
    body = (
        f"<dl>\n{rows}\n</dl>\n"
        '<p class="caution">Any client can call itself anything. Allow this only if you have just begun it.</p>\n'
        + _form(
            action,
            hidden,
            options,
            '<button class="allow" name="choice" value="allow">Allow with your passkey</button>\n'
            '<button name="choice" value="deny">Deny</button>',
        )
    )
    return page(f"Allow {shown}?", body, sends_to=sends_to)


def sign_in_page(action: str, hidden: Mapping[str, str], options: str) -> HTMLResponse:
    button = '<button class="allow" name="choice" value="allow">Sign in with your passkey</button>'
    return page("Sign in to the console", _form(action, hidden, options, button))


def invite_page(action: str) -> HTMLResponse:
    """Where the link of an invitation leads. Looking at it uses nothing up, as the previews of chats do."""
    body = (
        "<p>You are invited to use Claude Code here.</p>\n"
        f'<form method="post" action="{action}" autocomplete="off">\n'
        f'<input type="hidden" name="invite" data-from-link value="">\n</form>\n{_WITHOUT_SCRIPT}'
    )
    return page("Your invitation", body)


def passkey_page(action: str, name: str, hidden: Mapping[str, str], options: str) -> HTMLResponse:
    body = (
        "<p>A passkey takes the place of a password: your device keeps it, and asks for your finger, your face or "
        "its PIN.</p>\n"
        + _form(action, hidden, options, '<button class="allow" name="choice" value="allow">Make a passkey</button>')
    )
    return page(f"Welcome, {name}", body)


def welcome_page(name: str, resource: str, console: str | None) -> HTMLResponse:
    more = f'<p><a href="{escape(console)}">Open the console</a></p>' if console is not None else ""
    body = (
        "<p>Your passkey is ready. Add this address to your MCP client; it opens a browser in which you sign in:</p>\n"
        f"<p><code>{escape(resource)}</code></p>\n{more}"
    )
    return page(f"That is done, {name}", body)


# -- the server -------------------------------------------------------------------------------------------------------


_SIGN_IN, _INVITE, _PASSKEY = "/sign-in", "/invite", "/invite/passkey"
_SIGNED_IN_FOR = 12 * 3600.0
_MOST_FAILURES = 60
"""Failed sign-ins of one address within a minute. There is nothing that could be guessed: it is for the work that they
make. Whole offices come from one address."""

Link = Callable[[Identity], Awaitable[str]]


class _Stopped(Exception):
    """A page that says why something does not go on."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


class AuthorizationServer:
    """The authorization server of one origin."""

    def __init__(
        self,
        service: Service,
        callers: Callers,
        origin: str,
        link: Link | None,
        *,
        documents: ClientDocuments | None = None,
    ) -> None:
        """`origin` is where people and clients reach this server. `link` makes one that signs somebody in to the
        console once; None without a console. Blocks on the disk."""
        self._service = service
        self._callers = callers
        self._origin = origin
        self._link = link
        self._state_dir = service.settings.state_dir
        database = database_in(self._state_dir)
        self._people, self._grants = InvitedPeople(database), OAuthGrants(database)
        self._known = self._people.names()
        self._requests = SealedRequests(origin)
        self._passkeys = Passkeys(self._people, origin)
        self.resource = f"{origin}{PATH}"
        documents = documents or ClientDocuments(origin)
        self._provider = Provider(self._grants, documents, self._requests, origin, self.resource, self._end_stolen)
        self._failures = FailureLimit(_MOST_FAILURES)
        tokens = OwnAccessTokens(self._grants, origin, self.resource)
        callers.take_own_tokens(tokens, service.admit, service.assign, self._returning)
        self._people.serve_at(origin)
        log.info("people sign in at %s; their clients connect to %s", origin, self.resource)

    # -- people who come and go -----------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Ends everything of people who are removed, for as long as this runs."""
        mark = await asyncio.to_thread(change_mark, self._state_dir)
        async with WatchedFile(str(mark), lambda: None) as watched:
            while True:
                # In this order: a change from here on is noted again.
                watched.clear()
                await watched.watch_again()
                try:
                    self._apply(await asyncio.to_thread(self._people.names))
                except OSError as error:
                    # Not taken for an empty list. Their tokens are looked up for each request all the same.
                    log.error("who is invited cannot be read: %s", error)
                await watched.wait()

    def _apply(self, now: Mapping[str, str]) -> None:
        before, self._known = self._known, dict(now)
        removed, added = before.keys() - now.keys(), now.keys() - before.keys()
        for subject in removed:
            self._callers.end_person(before[subject], subject, self._service.audit)
        if removed or added:
            details = {
                "added": sorted(now[subject] for subject in added),
                "removed": sorted(before[subject] for subject in removed),
            }
            log.warning("the people have changed: %s", details)
            self._service.audit(AuditEvent(AuditKind.CALLERS_CHANGED, "operator", details=details))

    async def _returning(self, name: str) -> tuple[Any, float] | None:
        """Somebody who has signed in at the console before this server was started, and until when that counts."""
        try:
            found = await asyncio.to_thread(self._people.signed_in, name)
        except OSError:
            raise UpstreamUnavailable("Who is signed in cannot be looked up just now.") from None
        return None if found is None else (grant_of(*found), found[1])

    def _end_stolen(self, name: str) -> None:
        """Whoever has stolen a token may be connected with another of the same consent."""
        log.error("a code or refresh token of %s has come a second time: what came of that consent has ended", name)
        self._service.audit(AuditEvent(AuditKind.GRANT_STOLEN, name))
        self._callers.end_person(name, None, self._service.audit)

    # -- routes ---------------------------------------------------------------------------------------------------

    def routes(self) -> Sequence[BaseRoute]:
        authorization = AuthorizationHandler(self._provider)

        async def authorize(request: Request) -> Response:
            return await self._authorize(request, authorization)

        routes = [
            *ClientEndpoints(self._provider, self._origin, self.resource).routes(),
            self._for_people("/authorize", authorize, "GET"),
            self._for_people(CONSENT, self._show_consent, "GET"),
            self._for_people(CONSENT, self._decide, "POST"),
            self._for_people(_INVITE, self._show_invite, "GET"),
            self._for_people(_INVITE, self._offer_passkey, "POST"),
            self._for_people(_PASSKEY, self._add_passkey, "POST"),
        ]
        if self._link is not None:
            routes.append(self._for_people(_SIGN_IN, self._show_sign_in, "GET"))
            routes.append(self._for_people(_SIGN_IN, self._sign_in, "POST"))
        return routes

    def _for_people(self, path: str, handler: Handler, method: str) -> Route:
        """An address for browsers. What is sent with a form must come from a page of this server."""

        async def handle(request: Request) -> Response:
            if method == "POST" and not self._is_from_own_page(request):
                return message("That does not count", "It was not sent by a page of this server.", 403)
            if method == "GET" and self._is_elsewhere(request):
                query = f"?{request.url.query}" if request.url.query else ""
                return RedirectResponse(f"{self._origin}{path}{query}", 303, NO_STORE)
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
                return message("Not just now", "This cannot be done just now. Try again in a moment.", 503)

        return Route(path, bounded(request_response(handle)), methods=[method])

    def _is_elsewhere(self, request: Request) -> bool:
        """Whether a browser on this machine has come by another name than the one that its passkeys are for. Behind a
        proxy the name in a request says nothing."""
        if self._service.settings.web_url is not None:
            return False
        return request.headers.get("host") != urlsplit(self._origin).netloc

    def _is_from_own_page(self, request: Request) -> bool:
        site = request.headers.get("sec-fetch-site", "same-origin")
        return request.headers.get("origin") == self._origin and site == "same-origin"

    # -- what clients ask -----------------------------------------------------------------------------------------

    async def _authorize(self, request: Request, handler: AuthorizationHandler) -> Response:
        if has_repeated(request.query_params.multi_items()):
            return message("That does not count", "The request names something twice.", 400)
        response = await handler.handle(request)
        location = response.headers.get("location")
        if location is None:
            # Never sent on to an address that is not the client's: the person is told instead.
            return message(
                "This client cannot sign in",
                "It is not known here, or it wants to send you to an address that it has not named before.",
                400,
            )
        if not location.startswith(f"{self._origin}{CONSENT}?"):
            # A refusal says who it is from too (RFC 9207).
            response.headers["location"] = construct_redirect_uri(location, iss=self._origin)
        return response

    # -- a person allows a client ---------------------------------------------------------------------------------

    async def _show_consent(self, request: Request) -> Response:
        sealed = request.query_params.get("request", "")
        asked = self._opened(sealed, "consent")
        hidden, options, browser = self._ceremony(request, sealed)
        redirect = str(asked["redirect"])
        response = consent_page(
            CONSENT, asked["name"], str(asked["client"]), redirect, redirect_origin(redirect), hidden, options
        )
        self._requests.keep_browser(response, browser)
        return response

    async def _decide(self, request: Request) -> Response:
        form, sealed, asked = await self._form(request, "consent")
        if (form.get("decision") or form.get("choice")) != "allow":
            if not self._requests.use(sealed):
                raise _Stopped(_over())
            return self._back(asked, error="access_denied")
        person = await self._signed(request, form, sealed)
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
        return RedirectResponse(location, 303, {**NO_STORE, "Referrer-Policy": "no-referrer"})

    # -- the console ----------------------------------------------------------------------------------------------

    async def _show_sign_in(self, request: Request) -> Response:
        hidden, options, browser = self._ceremony(request, self._requests.seal({"purpose": "console"}))
        response = sign_in_page(_SIGN_IN, hidden, options)
        self._requests.keep_browser(response, browser)
        return response

    async def _sign_in(self, request: Request) -> Response:
        form, sealed, _ = await self._form(request, "console")
        person = await self._signed(request, form, sealed)
        until = grant_of(person, 0).issued_at + _SIGNED_IN_FOR
        identity = await self._callers.let_in(grant_of(person, until), until)
        if identity is None:
            raise _Stopped(message("You cannot sign in here", "Ask whoever runs this server.", 403))
        await asyncio.to_thread(self._people.note_sign_in, person.subject, until)
        assert self._link is not None
        return RedirectResponse(await self._link(identity), 303, NO_STORE)

    # -- invitations ----------------------------------------------------------------------------------------------

    async def _show_invite(self, _: Request) -> Response:
        return invite_page(_INVITE)

    async def _offer_passkey(self, request: Request) -> Response:
        invite = _text((await request.form()).get("invite"))
        person, existing = await self._invited(request, invite)
        sealed = self._requests.seal({"purpose": "passkey", "invite": hash_of(invite)})
        hidden, _, browser = self._ceremony(request, sealed)
        options = self._passkeys.creation_options(person, existing, self._requests.challenge(request, sealed, browser))
        response = passkey_page(_PASSKEY, person.name, {**hidden, "invite": invite}, options)
        self._requests.keep_browser(response, browser)
        return response

    async def _add_passkey(self, request: Request) -> Response:
        form, sealed, asked = await self._form(request, "passkey")
        invite = _text(form.get("invite"))
        if asked["invite"] != hash_of(invite):
            raise _Stopped(_over())
        challenge = self._requests.challenge(request, sealed)
        person = await self._passkeys.add(invite, _text(form.get("credential")), challenge)
        if person is None:
            self._failures.failed(address_of(request))
            raise _Stopped(message("That did not work", "The passkey was not made. Open your link once more.", 400))
        self._service.audit(AuditEvent(AuditKind.PASSKEY_ADDED, person.name))
        return welcome_page(person.name, self.resource, f"{self._origin}/" if self._link is not None else None)

    async def _invited(self, request: Request, invite: str) -> tuple[Person, list[bytes]]:
        self._failures.check(address_of(request))
        found = await asyncio.to_thread(self._people.by_invite, invite)
        if found is None:
            self._failures.failed(address_of(request))
            text = "It was used already, or is too old. Ask for a new one."
            raise _Stopped(message("This link does not count any more", text, 410))
        return found

    # -- what all forms have --------------------------------------------------------------------------------------

    def _ceremony(self, request: Request, sealed: str) -> tuple[dict[str, str], str, str]:
        """The hidden fields of a form, what its script asks a passkey for, and the browser that it is for."""
        browser = self._requests.browser(request)
        hidden = {"request": sealed, "secret": self._requests.form_secret(sealed, browser)}
        return hidden, self._passkeys.request_options(self._requests.challenge(request, sealed, browser)), browser

    def _opened(self, sealed: str, purpose: str) -> Mapping[str, Any]:
        asked = self._requests.open(sealed)
        if asked is None or asked.get("purpose") != purpose:
            raise _Stopped(_over())
        return asked

    async def _form(self, request: Request, purpose: str) -> tuple[FormData, str, Mapping[str, Any]]:
        form = await request.form()
        sealed = _text(form.get("request"))
        asked = self._opened(sealed, purpose)
        if not self._requests.is_of_browser(request, sealed, _text(form.get("secret"))):
            raise _Stopped(message("That does not count", "Another browser has begun this.", 403))
        return form, sealed, asked

    async def _signed(self, request: Request, form: FormData, sealed: str) -> Person:
        """Who has signed this very request, which is used up by it."""
        self._failures.check(address_of(request))
        person = await self._passkeys.person(_text(form.get("credential")), self._requests.challenge(request, sealed))
        if person is None:
            self._failures.failed(address_of(request))
            self._service.audit(AuditEvent(AuditKind.AUTH_FAILED, "unknown"))
            raise _Stopped(message("That passkey is not known here", "Nothing was allowed. Try again.", 403))
        # After the signature and with nothing awaited in between: of two that are good, one counts.
        if not self._requests.use(sealed):
            raise _Stopped(_over())
        return person


def _over() -> Response:
    return message("Begin again", "This has been decided already, or was begun too long ago.", 400)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
