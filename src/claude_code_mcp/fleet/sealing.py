"""Secrets of sessions on their way to another machine, sealed so that only that machine can read them.

Each machine has a key pair for this alone: the private half stays on it, the public half is what it reports of itself.
A seal is an X25519 sealed box (libsodium): whoever has the public half can make one, so it says nothing of who made it.
It holds the session and the machine that it is for, so that it cannot pass for that of another session.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nacl.exceptions import CryptoError
from nacl.public import PrivateKey, PublicKey, SealedBox

from ..errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class SealingKey:
    """The key pair of this machine."""

    machine_id: str
    private: bytes = field(repr=False)

    @classmethod
    def new(cls, machine_id: str) -> "SealingKey":
        return cls(machine_id, bytes(PrivateKey.generate()))

    @property
    def public(self) -> bytes:
        return bytes(PrivateKey(self.private).public_key)

    def unseal(self, session_id: str, sealed: str) -> dict[str, Any]:
        """The secrets in a seal; InvalidArgument if it is not for this machine and this session."""
        try:
            content = json.loads(SealedBox(PrivateKey(self.private)).decrypt(b64decode(sealed, validate=True)))
            if content["session"] != session_id or content["machine"] != self.machine_id:
                raise ValueError
            return dict(content["secrets"])
        except (CryptoError, ValueError, KeyError, TypeError):
            message = f"The secrets of session {session_id} were not sealed for this machine, or are damaged."
            raise InvalidArgument(message) from None


def seal(session_id: str, machine_id: str, public: bytes, secrets: Mapping[str, Any]) -> str:
    """The secrets of a session for one machine."""
    content = {"session": session_id, "machine": machine_id, "secrets": secrets}
    return b64encode(SealedBox(PublicKey(public)).encrypt(json.dumps(content).encode())).decode()
