"""A person's device without a browser: it keeps passkeys, opens the pages of the server and fills in their forms."""

import base64
import hashlib
import json
import re
import secrets
from dataclasses import dataclass, field
from html import unescape
from typing import Any
from urllib.parse import urlsplit

import cbor2
import httpx2
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.ports import client_address

USER_PRESENT, USER_VERIFIED, HAS_KEY = 0x01, 0x04, 0x40


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@dataclass
class Passkey:
    """An authenticator with one passkey, as the specification has it."""

    flags: int = USER_PRESENT | USER_VERIFIED
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    credential_id: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    handle: bytes = b""
    count: int = 0

    def create(self, options: dict[str, Any], origin: str) -> str:
        self.handle = decode(options["user"]["id"])
        numbers = self.key.public_key().public_numbers()
        x, y = numbers.x.to_bytes(32, "big"), numbers.y.to_bytes(32, "big")
        public = cbor2.dumps({1: 2, 3: -7, -1: 1, -2: x, -3: y})
        attested = bytes(16) + len(self.credential_id).to_bytes(2, "big") + self.credential_id + public
        data = self._data(options["rp"]["id"], HAS_KEY) + attested
        attestation = cbor2.dumps({"fmt": "none", "attStmt": {}, "authData": data})
        client = self._client("webauthn.create", options["challenge"], origin)
        return self._credential({"clientDataJSON": encode(client), "attestationObject": encode(attestation)})

    def get(self, options: dict[str, Any], origin: str) -> str:
        self.count += 1
        data = self._data(options["rpId"], 0)
        client = self._client("webauthn.get", options["challenge"], origin)
        signature = self.key.sign(data + hashlib.sha256(client).digest(), ec.ECDSA(hashes.SHA256()))
        return self._credential(
            {
                "clientDataJSON": encode(client),
                "authenticatorData": encode(data),
                "signature": encode(signature),
                "userHandle": encode(self.handle),
            }
        )

    def _data(self, host: str, more: int) -> bytes:
        return hashlib.sha256(host.encode()).digest() + bytes([self.flags | more]) + self.count.to_bytes(4, "big")

    @staticmethod
    def _client(kind: str, challenge: str, origin: str) -> bytes:
        return json.dumps({"type": kind, "challenge": challenge, "origin": origin, "crossOrigin": False}).encode()

    def _credential(self, response: dict[str, Any]) -> str:
        credential = {"id": encode(self.credential_id), "rawId": encode(self.credential_id), "type": "public-key"}
        return json.dumps({**credential, "response": response})


@dataclass(frozen=True)
class Form:
    """The form of a page."""

    action: str
    fields: dict[str, str]
    options: dict[str, Any]


def form_of(page: httpx2.Response) -> Form:
    found = re.search(r'<form method="post" action="([^"]*)" data-options="([^"]*)"', page.text)
    assert found is not None, page.text
    fields = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', page.text)
    options = json.loads(unescape(found[2])) if found[2] else {}
    return Form(unescape(found[1]), {name: unescape(value) for name, value in fields}, options)


@dataclass
class Device:
    """A browser with cookies of its own, and a passkey."""

    origin: str
    passkey: Passkey = field(default_factory=Passkey)
    host: str = field(default_factory=client_address)
    """The address that its requests come from."""

    def __post_init__(self) -> None:
        transport = httpx2.AsyncHTTPTransport(local_address=self.host)
        self.http = httpx2.AsyncClient(timeout=60, base_url=self.origin, transport=transport)
        self.headers = {"origin": self.origin, "sec-fetch-site": "same-origin"}

    async def __aenter__(self) -> "Device":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def post(self, action: str, fields: dict[str, str], **headers: str) -> httpx2.Response:
        return await self.http.post(action, data=fields, headers={**self.headers, **headers})

    async def accept(self, link: str) -> httpx2.Response:
        """Opens the link of an invitation and makes a passkey."""
        page = await self.post("/invite", {"invite": urlsplit(link).fragment})
        if page.status_code != 200:
            return page
        form = form_of(page)
        credential = self.passkey.create(form.options, self.origin)
        return await self.post(form.action, {**form.fields, "credential": credential, "decision": "allow"})

    async def consent_page(self, address: str) -> httpx2.Response:
        """The page that a client sends its person to."""
        sent = await self.http.get(address)
        assert sent.status_code == 302, sent.text
        return await self.http.get(sent.headers["location"])

    def signed(self, form: Form) -> dict[str, str]:
        """The fields of a form whose question is answered with the passkey."""
        return {**form.fields, "credential": self.passkey.get(form.options, self.origin), "decision": "allow"}

    async def allow(self, address: str) -> str:
        """Allows a client; returns where the browser is sent."""
        form = form_of(await self.consent_page(address))
        sent = await self.post(form.action, self.signed(form))
        assert sent.status_code == 303, sent.text
        return str(sent.headers["location"])

    async def sign_in(self) -> httpx2.Response:
        """Signs in to the console."""
        form = form_of(await self.http.get("/sign-in"))
        return await self.post(form.action, self.signed(form))
