"""Passkeys (WebAuthn): creating them and signing in with them; and requests that a browser has started.

A request, such as a client's request for access, passes through the browser sealed. The server stores nothing about it,
so a flood of requests cannot displace those of others. It is valid for ten minutes, once, and only with the cookie of
the browser that started it. The challenge that a passkey signs is derived from both, so a signature is valid for this
request in this browser only. After a restart of the server, requests must be started again.

Passkeys must be discoverable, so that people type no name, and the authenticator must have verified the person.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import webauthn
from starlette.requests import Request
from starlette.responses import Response
from webauthn.helpers import parse_authentication_credential_json
from webauthn.helpers.exceptions import WebAuthnException
from webauthn.helpers.structs import (
    AuthenticatorSelectionCriteria,
    PublicKeyCredentialDescriptor,
    ResidentKeyRequirement,
    UserVerificationRequirement,
)

from ....core import json_text
from ....core.model.text import base64url
from ..invited_people import InvitedPeople, Person

BEGUN_FOR = 600.0
"""Seconds for which a request is valid."""
_MAX_USED = 1000
"""How many used requests to remember, separately for signed and denied ones."""
_MAX_CREDENTIAL = 16 << 10
_TIMEOUT_MS = 300_000
_COOKIE_LENGTH = 43


class SealedRequests:
    """Requests started by browsers here. `cookie` identifies the browser and is set by the first page."""

    def __init__(self, origin: str) -> None:
        self._key = secrets.token_bytes(32)
        self._secure = origin.startswith("https://")
        # With the prefix no other host of the same domain can set it; browsers accept it over TLS only.
        digest = hashlib.sha256(origin.encode()).hexdigest()[:8]
        self._cookie = f"{'__Host-' if self._secure else ''}claude_code_mcp_browser_{digest}"
        self._used: OrderedDict[str, None] = OrderedDict()
        self._denied: OrderedDict[str, None] = OrderedDict()
        """Separate: denying needs no passkey, and strangers could displace the signed ones."""

    def seal(self, fields: Mapping[str, Any]) -> str:
        """A request in the form that passes through a browser, which can read but not change it."""
        content = {**fields, "until": time.monotonic() + BEGUN_FOR, "id": secrets.token_urlsafe(16)}
        body = base64url(json_text.encode(content))
        return f"{body}.{self._derived('request', body)}"

    def open(self, sealed: str) -> Mapping[str, Any] | None:
        """The contents of a valid request that was sealed here."""
        body, _, proof = sealed.rpartition(".")
        if not _equal(proof, self._derived("request", body)) or self._is_over(sealed):
            return None
        content: Mapping[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return content if content["until"] >= time.monotonic() else None

    def use(self, sealed: str) -> bool:
        """Marks a signed request as used; returns whether it was unused."""
        return self._end(sealed, self._used)

    def deny(self, sealed: str) -> bool:
        """Marks a denied request as used; returns whether it was unused."""
        return self._end(sealed, self._denied)

    def _is_over(self, sealed: str) -> bool:
        return sealed in self._used or sealed in self._denied

    def _end(self, sealed: str, ended: OrderedDict[str, None]) -> bool:
        if self._is_over(sealed):
            return False
        ended[sealed] = None
        if len(ended) > _MAX_USED:
            ended.popitem(last=False)
        return True

    # -- the browser ----------------------------------------------------------------------------------------------

    def browser(self, request: Request) -> str:
        """The browser's cookie, or a new one."""
        found = request.cookies.get(self._cookie, "")
        return found if len(found) == _COOKIE_LENGTH and found.isascii() else secrets.token_urlsafe(32)

    def keep_browser(self, response: Response, browser: str) -> None:
        # Lax: the browser first sends it with a page that is opened from a client's site.
        response.set_cookie(
            self._cookie, browser, max_age=int(BEGUN_FOR), path="/", secure=self._secure, httponly=True, samesite="lax"
        )

    def form_secret(self, sealed: str, browser: str) -> str:
        """A secret in each form, which only pages given to this browser contain."""
        return self._derived("form", f"{browser}:{sealed}")

    def is_of_browser(self, request: Request, sealed: str, secret: str) -> bool:
        browser = request.cookies.get(self._cookie, "")
        return bool(browser) and _equal(secret, self.form_secret(sealed, browser))

    def challenge(self, request: Request, sealed: str, browser: str | None = None) -> bytes:
        browser = browser if browser is not None else request.cookies.get(self._cookie, "")
        return self._derived("challenge", f"{browser}:{sealed}").encode()

    def _derived(self, purpose: str, text: str) -> str:
        """A value that only this server can derive from a text, different for each purpose; 43 characters."""
        message = f"{purpose}:{text}".encode("utf-8", "surrogatepass")
        return base64url(hmac.digest(self._key, message, "sha256"))


class Passkeys:
    """The WebAuthn ceremonies of one server."""

    def __init__(self, people: InvitedPeople, origin: str) -> None:
        self._people = people
        self._origin = origin
        self._host = urlsplit(origin).hostname or ""

    def creation_options(self, person: Person, existing: Sequence[bytes], challenge: bytes) -> str:
        """The options for creating a passkey, as JSON."""
        options = webauthn.generate_registration_options(
            rp_id=self._host,
            rp_name="Claude Code",
            user_id=bytes.fromhex(person.subject),
            user_name=person.name,
            challenge=challenge,
            timeout=_TIMEOUT_MS,
            authenticator_selection=AuthenticatorSelectionCriteria(
                resident_key=ResidentKeyRequirement.REQUIRED, user_verification=UserVerificationRequirement.REQUIRED
            ),
            exclude_credentials=[PublicKeyCredentialDescriptor(id=key) for key in existing],
        )
        return webauthn.options_to_json(options)

    def request_options(self, challenge: bytes) -> str:
        """The options for signing in with any passkey for this server, as JSON."""
        options = webauthn.generate_authentication_options(
            rp_id=self._host,
            challenge=challenge,
            timeout=_TIMEOUT_MS,
            user_verification=UserVerificationRequirement.REQUIRED,
        )
        return webauthn.options_to_json(options)

    async def add(self, invite: str, credential: str, challenge: bytes) -> Person | None:
        """Adds a passkey for the person of an invitation link, which is then used up; None if either is invalid. Raises
        OSError."""
        return await asyncio.to_thread(self._add, invite, credential, challenge)

    def _add(self, invite: str, credential: str, challenge: bytes) -> Person | None:
        if len(credential) > _MAX_CREDENTIAL:
            return None
        try:
            made = webauthn.verify_registration_response(
                credential=_decoded(credential),
                expected_challenge=challenge,
                expected_rp_id=self._host,
                expected_origin=self._origin,
                require_user_verification=True,
            )
        except (WebAuthnException, ValueError, KeyError, TypeError, binascii.Error):
            return None
        return self._people.add_passkey(invite, made.credential_id, made.credential_public_key, made.sign_count)

    async def person(self, credential: str, challenge: bytes) -> Person | None:
        """The person who signed the challenge; None if unknown or invalid. Raises OSError."""
        return await asyncio.to_thread(self._person, credential, challenge)

    def _person(self, credential: str, challenge: bytes) -> Person | None:
        if len(credential) > _MAX_CREDENTIAL:
            return None
        try:
            presented = parse_authentication_credential_json(_decoded(credential))
            passkey = self._people.passkey(presented.raw_id)
            if passkey is None:
                return None
            verified = webauthn.verify_authentication_response(
                credential=presented,
                expected_challenge=challenge,
                expected_rp_id=self._host,
                expected_origin=self._origin,
                credential_public_key=passkey.public_key,
                credential_current_sign_count=passkey.sign_count,
                require_user_verification=True,
            )
        except (WebAuthnException, ValueError, KeyError, TypeError, binascii.Error):
            return None
        handle = presented.response.user_handle
        if handle is not None and handle != bytes.fromhex(passkey.person.subject):
            return None
        # Last, and in one statement: a passkey that was removed during the signature check grants no access.
        return passkey.person if self._people.note_use(presented.raw_id, verified.new_sign_count) else None


def _decoded(credential: str) -> dict[str, Any]:
    """A browser's data. Raises ValueError if it is not an object or is nested too deeply."""
    found = json_text.decode(credential)
    if not isinstance(found, dict):
        raise ValueError("not a credential")
    return found


def _equal(presented: str, known: str) -> bool:
    return hmac.compare_digest(presented.encode("utf-8", "surrogatepass"), known.encode())
