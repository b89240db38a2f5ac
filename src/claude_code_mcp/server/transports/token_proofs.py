"""Access tokens that are bound to a key of their client (DPoP, RFC 9449), and the proof that a request is from it.

A token that names a key (`cnf.jkt`) counts only in a request with `Authorization: DPoP …` and one proof: a small token
in the header `DPoP`, signed with that key for this method, this address, this access token and this moment. A proof
counts once. Whoever has stolen such a token, from a log or a proxy, can do nothing with it. Tokens without a key are
shown as bearer tokens and go on working, unless the settings want all of them bound.

The key is compared with the one of the token before anything is verified, so strangers cause no work. Which proofs
have come is remembered for as long as they would count, for each person apart, so nobody can push out those of
somebody else; a restart forgets them, which leaves a replay the two minutes for which a proof counts.

It is known where this server is from the settings alone: behind a proxy no header of a request says that.
"""

import base64
import hashlib
import hmac
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from mcp.server.auth.handlers.metadata import ProtectedResourceMetadataHandler
from mcp.server.auth.routes import build_resource_metadata_url, cors_middleware
from mcp.server.auth.settings import AuthSettings
from mcp.shared.auth import ProtectedResourceMetadata
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ... import json_text
from ...errors import RateLimited
from .access_tokens import ALGORITHMS, LEEWAY, Grant

log = logging.getLogger(__name__)

_PROOF_SECONDS = 120
"""How long after it was made a proof counts."""
_LONGEST_PROOF = 8 << 10
_LONGEST_ID = 512
_MOST_PROOFS = 10_000
"""Proofs of one person that are remembered at a time: about seventy requests a second."""
_MOST_PEOPLE = 10_000
_NONCE_SECONDS = 300
_MEMBERS = {"EC": ("crv", "kty", "x", "y"), "OKP": ("crv", "kty", "x"), "RSA": ("e", "kty", "n")}
"""What the thumbprint of a key is made of (RFC 7638), in this order."""
_PRIVATE = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})
_PORTS = {"http": 80, "https": 443}


@dataclass(eq=False)
class _Presented:
    """How a request shows its token: `bound` by the scheme DPoP, with these proofs."""

    bound: bool
    proofs: Sequence[bytes]
    method: str
    path: str
    accepted: str | None = None
    """The token that was accepted. A request may ask more than once who its caller is, and its proof counts once."""
    refusal: str | None = None
    """Why the token was not accepted, for the answer."""


_presented: ContextVar[_Presented | None] = ContextVar("presented_token", default=None)


class _NoProof(Exception):
    """Why a proof does not count, and what the client is told (RFC 9449, 7.1)."""

    def __init__(self, reason: str, code: str = "invalid_dpop_proof") -> None:
        super().__init__(reason)
        self.code = code


class TokenProofs:
    """Checks the proofs of requests to one server."""

    def __init__(
        self, resource: str, *, required: bool = False, nonces: bool = False, clock: Callable[[], float] = time.time
    ) -> None:
        """`resource` is the address of the MCP endpoint as clients have it. `required`: every access token must be
        bound. `nonces`: a proof must also have in it what this server has sent in the last minutes."""
        parts = urlsplit(resource)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._required = required
        self._nonces = nonces
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._metadata_url = ""
        self._used: OrderedDict[str, OrderedDict[bytes, float]] = OrderedDict()
        """Until when the proofs that have come would count, by the subject of their person."""

    # -- the check ------------------------------------------------------------------------------------------------

    def accept(self, token: str, grant: Grant) -> bool:
        """Whether the request that is being answered may use this token, which is good: with a proof if it is bound to
        a key, as a bearer token if it is not. A good proof is used up by this. RateLimited for a person with too many.
        Nothing is awaited: of two requests with one proof, one counts."""
        presented = _presented.get()
        try:
            if grant.key is None:
                if self._required or (presented is not None and presented.bound):
                    raise _NoProof("it is not bound to a key", "invalid_token")
                return True
            if presented is None or not presented.bound:
                raise _NoProof("it is bound to a key, and shown as a bearer token", "invalid_token")
            if presented.accepted != token:
                self._use(grant, self._checked(token, grant.key, presented))
                presented.accepted = token
        except _NoProof as reason:
            log.info("an access token of %s is refused: %s", grant.name, reason)
            if presented is not None:
                presented.refusal = reason.code
            return False
        return True

    def _checked(self, token: str, key: str, presented: _Presented) -> Mapping[str, Any]:
        """The claims of the proof. _NoProof if it is not one for this request by the owner of the key."""
        if len(presented.proofs) != 1 or len(presented.proofs[0]) > _LONGEST_PROOF:
            raise _NoProof("there must be one proof")
        claims = _verified(presented.proofs[0].decode("latin-1"), key)
        if claims.get("htm") != presented.method or not self._is_here(claims.get("htu"), presented.path):
            raise _NoProof("its proof is for another request")
        expected = _encoded(hashlib.sha256(token.encode()).digest())
        if not _is_equal(claims.get("ath"), expected):
            raise _NoProof("its proof is for another token")
        made, now = claims.get("iat"), self._clock()
        if isinstance(made, bool) or not isinstance(made, int | float):
            raise _NoProof("its proof has no time")
        # Asked what must hold, and not what must not: JSON as it is read here has NaN, of which nothing holds.
        if not now - _PROOF_SECONDS <= made <= now + LEEWAY:
            raise _NoProof("its proof is too old, or of the future")
        if self._nonces and not any(_is_equal(claims.get("nonce"), nonce) for nonce in self._good_nonces()):
            raise _NoProof("its proof lacks the nonce of this server", "use_dpop_nonce")
        return claims

    def _is_here(self, address: object, path: str) -> bool:
        """Whether an address is that of the request, without its query (RFC 9449, 4.3)."""
        return isinstance(address, str) and _normalized(address) == _normalized(f"{self._origin}{path}")

    def _use(self, grant: Grant, claims: Mapping[str, Any]) -> None:
        """Remembers a proof. _NoProof if it has come before."""
        proof_id = claims.get("jti")
        if not isinstance(proof_id, str) or not 0 < len(proof_id) <= _LONGEST_ID:
            raise _NoProof("its proof has no id")
        now, digest = self._clock(), hashlib.sha256(f"{grant.key} {proof_id}".encode("utf-8", "surrogatepass")).digest()
        used = self._used.setdefault(grant.subject, OrderedDict())
        self._used.move_to_end(grant.subject)
        while used and next(iter(used.values())) < now:
            used.popitem(last=False)
        if digest in used:
            raise _NoProof("its proof has come before")
        if len(used) >= _MOST_PROOFS:
            raise RateLimited("Too many requests with proofs; wait a moment.", 5)
        used[digest] = now + _PROOF_SECONDS + LEEWAY
        self._forget_people(now)

    def _forget_people(self, now: float) -> None:
        """Forgets those none of whose proofs would count any more, and the longest silent ones of too many."""
        while len(self._used) > 1:
            silent = next(iter(self._used.values()))
            if len(self._used) <= _MOST_PEOPLE and silent and next(reversed(silent.values())) >= now:
                break
            self._used.popitem(last=False)

    # -- nonces ---------------------------------------------------------------------------------------------------

    def _nonce(self, ago: int = 0) -> str:
        slot = int(self._clock() // _NONCE_SECONDS) - ago
        return _encoded(hmac.digest(self._secret, str(slot).encode(), "sha256"))

    def _good_nonces(self) -> tuple[str, str]:
        return self._nonce(), self._nonce(1)

    # -- requests -------------------------------------------------------------------------------------------------

    def serve(self, app: Starlette, auth: AuthSettings) -> None:
        """Has an application of the MCP SDK take bound tokens, and say so in the metadata of the resource (RFC 9728)
        and to whoever is refused."""
        assert auth.resource_server_url is not None
        metadata_url = build_resource_metadata_url(auth.resource_server_url)
        self._metadata_url = str(metadata_url)
        metadata = ProtectedResourceMetadata(
            resource=auth.resource_server_url,
            authorization_servers=[auth.issuer_url],
            # Left out if there are none: with an empty list clients ask for an empty scope, which providers refuse.
            scopes_supported=auth.required_scopes or None,
            dpop_signing_alg_values_supported=[*ALGORITHMS],
            dpop_bound_access_tokens_required=self._required or None,
        )
        handler = cors_middleware(ProtectedResourceMetadataHandler(metadata).handle, ["GET", "OPTIONS"])
        # Before the SDK's own, which cannot be told of proofs: the first route that fits answers.
        app.router.routes.insert(0, Route(urlsplit(self._metadata_url).path, handler, methods=["GET", "OPTIONS"]))
        app.add_middleware(self._middleware)

    def _middleware(self, app: ASGIApp) -> ASGIApp:
        async def with_proof(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            scope, presented = _read(scope)

            async def answer(message: Message) -> None:
                if message["type"] == "http.response.start":
                    self._add_headers(message, presented)
                await send(message)

            token = _presented.set(presented)
            try:
                await app(scope, receive, answer)
            finally:
                _presented.reset(token)

        return with_proof

    def _add_headers(self, message: Message, presented: _Presented) -> None:
        headers = MutableHeaders(raw=message.setdefault("headers", []))
        if self._nonces and presented.bound:
            headers.append("DPoP-Nonce", self._nonce())
        if message["status"] == 401 and "www-authenticate" in headers:
            # Beside the challenge for bearer tokens, which comes first: clients that know no other read that one.
            error = f'error="{presented.refusal}", ' if presented.refusal is not None else ""
            algorithms = " ".join(ALGORITHMS)
            challenge = f'DPoP {error}algs="{algorithms}", resource_metadata="{self._metadata_url}"'
            headers.append("WWW-Authenticate", challenge)


def _read(scope: Scope) -> tuple[Scope, _Presented]:
    """How the token of a request is shown; and the request as the MCP SDK reads it, which knows bearer tokens alone."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    shown = [value for name, value in headers if name.lower() == b"authorization"]
    proofs = [value for name, value in headers if name.lower() == b"dpop"]
    scheme, _, token = shown[0].partition(b" ") if len(shown) == 1 else (b"", b"", b"")
    bound = scheme.lower() == b"dpop"
    if bound:
        others = [pair for pair in headers if pair[0].lower() != b"authorization"]
        scope = {**scope, "headers": [*others, (b"authorization", b"Bearer " + token.strip())]}
    return scope, _Presented(bound, proofs, scope["method"], scope["path"])


# -- one proof --------------------------------------------------------------------------------------------------------


def _verified(proof: str, key: str) -> Mapping[str, Any]:
    """The claims of a proof that is signed with the key of this thumbprint. _NoProof for every other text."""
    import jwt  # noqa: PLC0415 - only where there is an issuer

    try:
        header = jwt.get_unverified_header(proof)
        algorithm, public = header.get("alg"), header.get("jwk")
        if header.get("typ") != "dpop+jwt" or algorithm not in ALGORITHMS or not isinstance(public, dict):
            raise _NoProof("its proof is none by its header")
        # First: only the owner of the key has this server verify anything.
        if not _is_equal(thumbprint(public), key):
            raise _NoProof("its proof is by another key")
        claims: Mapping[str, Any] = jwt.decode(
            proof,
            jwt.PyJWK(public, algorithm),
            algorithms=[algorithm],
            leeway=LEEWAY,
            # When it was made is looked at by whoever asks for this.
            options={"require": ["jti", "htm", "htu", "iat", "ath"], "verify_aud": False, "verify_iat": False},
        )
    except (jwt.PyJWTError, ArithmeticError, TypeError, ValueError) as error:
        raise _NoProof(f"its proof is not good: {type(error).__name__}") from None
    return claims


def thumbprint(public: Mapping[str, Any]) -> str | None:
    """The thumbprint of a public key (RFC 7638); None if it is none that proofs can be made with, or not public."""
    kind = public.get("kty")
    members = _MEMBERS.get(kind) if isinstance(kind, str) else None
    if members is None or not _PRIVATE.isdisjoint(public):
        return None
    values = {name: public.get(name) for name in members}
    if not all(isinstance(value, str) for value in values.values()):
        return None
    return _encoded(hashlib.sha256(json_text.encode(values)).digest())


def _normalized(address: str) -> tuple[str, str, int | None, str] | None:
    """An address without its query, as two of them are compared; None if it is none."""
    try:
        parts = urlsplit(address)
        if parts.username is not None or parts.password is not None or not parts.hostname:
            return None
        return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme), parts.path or "/"
    except ValueError:
        return None


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _is_equal(value: object, expected: str) -> bool:
    return isinstance(value, str) and hmac.compare_digest(value.encode("utf-8", "surrogatepass"), expected.encode())
