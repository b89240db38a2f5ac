"""A client with a key that its access tokens are bound to: it makes proofs, also wrong ones."""

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from claude_code_mcp.server.transports.token_proofs import thumbprint


@dataclass
class ClientKey:
    now: Callable[[], float] = time.time
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    @property
    def public(self) -> dict[str, Any]:
        return dict(json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self.key.public_key())))

    @property
    def private(self) -> dict[str, Any]:
        return dict(json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self.key)))

    @property
    def thumbprint(self) -> str:
        found = thumbprint(self.public)
        assert found is not None
        return found

    def claims(self, url: str, method: str = "POST", token: str | None = None, **changed: Any) -> dict[str, Any]:
        """Those of a good proof, changed; None takes one out."""
        made: dict[str, Any] = {
            "jti": secrets.token_urlsafe(12),
            "htm": method,
            "htu": url,
            "iat": int(self.now()),
            "ath": None if token is None else hash_of(token),
            **changed,
        }
        return {name: value for name, value in made.items() if value is not None}

    def sign(self, claims: dict[str, Any], **head: Any) -> str:
        return jwt.encode(claims, self.key, "ES256", {"typ": "dpop+jwt", "jwk": self.public, **head})

    def proof(self, url: str, method: str = "POST", token: str | None = None, **changed: Any) -> str:
        return self.sign(self.claims(url, method, token, **changed))

    def headers(self, url: str, token: str, method: str = "POST", **changed: Any) -> dict[str, str]:
        """What a request shows."""
        return {"authorization": f"DPoP {token}", "dpop": self.proof(url, method, token, **changed)}


def hash_of(token: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(token.encode()).digest()).rstrip(b"=").decode()
