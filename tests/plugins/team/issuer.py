"""An authorization server on loopback that publishes what a test tells it to, and signs whatever it is given."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.support.local_http import Handler, site

RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PUBLIC_PEM = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def published(key: Any, key_id: str, algorithm: str) -> dict[str, Any]:
    """A public key as an issuer lists it."""
    kind = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    return {**json.loads(kind.to_jwk(key.public_key())), "kid": key_id, "use": "sig", "alg": algorithm}


@dataclass
class Issuer:
    """`answers` may be changed at any time: path to JSON; a path that is not in it is not found."""

    url: str = ""
    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    active: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What the introspection says of a token."""
    codes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What is given for a code, once."""
    speaks: threading.Event = field(default_factory=threading.Event)
    """Nothing is answered unless it is set."""

    def publish(self, *keys: dict[str, Any], issuer: str | None = None) -> None:
        metadata = {"issuer": issuer or self.url, "jwks_uri": f"{self.url}/keys"}
        self.answers = {"/.well-known/oauth-authorization-server": metadata, "/keys": {"keys": [*keys]}}

    def claims(self, audience: str, **changed: Any) -> dict[str, Any]:
        claims = {"iss": self.url, "aud": audience, "sub": "user-1", "exp": int(time.time()) + 600, **changed}
        return {name: value for name, value in claims.items() if value is not None}


def sign(
    claims: dict[str, Any], key: Any = RSA_KEY, key_id: str | None = "rsa", algorithm: str = "RS256", **head: Any
) -> str:
    headers = {**head, **({"kid": key_id} if key_id is not None else {})}
    return jwt.encode(claims, key, algorithm, headers)


@contextmanager
def issuing() -> Iterator[Issuer]:
    issuer = Issuer()

    class Provider(Handler):
        def do_GET(self) -> None:
            issuer.asked.append(self.path)
            self._answer(issuer.answers.get(self.path))

        def do_POST(self) -> None:
            form = parse_qs(self.body().decode())
            issuer.asked.append(self.path)
            if "code" in form:
                self._answer(issuer.codes.pop(form["code"][0], None))
            else:
                self._answer(issuer.active.get(form["token"][0], {"active": False}))

        def _answer(self, found: Any) -> None:
            issuer.speaks.wait()
            body = found if isinstance(found, bytes) else json.dumps(found).encode()
            with contextlib.suppress(OSError):  # the client may have stopped waiting
                self.answer(404 if found is None else 200, body)

    with site(Provider) as issuer.url:
        issuer.publish(published(RSA_KEY, "rsa", "RS256"), published(EC_KEY, "ec", "ES256"))
        issuer.speaks.set()
        try:
            yield issuer
        finally:
            issuer.speaks.set()
