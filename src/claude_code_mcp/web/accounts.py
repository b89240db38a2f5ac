"""Who can sign in at this server, and whether what a sign-in rests on still holds.

A sign-in rests on a token (it ends when that token is no longer the principal's), on the socket of the shared server,
which only its own user can reach, or on nothing where the server lets everybody on this machine in.
"""

import hashlib
import hmac
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ..errors import ClaudeCodeError, UpstreamUnavailable
from ..service import LOCAL
from ..state.sign_ins import Identity

log = logging.getLogger(__name__)

OPEN, SOCKET = "open", "socket"
_LOOK_AGAIN = 1.0
"""Seconds between two looks at the tokens file."""


class Accounts:
    """The callers of one server. Every method may block on the disk."""

    def __init__(
        self,
        load: Callable[[], Mapping[str, str]],
        tokens_file: Path | None,
        *,
        by_socket: bool = False,
        by_token: bool = True,
    ) -> None:
        """`load` reads the callers by token; it is called again when the file has changed. `by_socket`: tickets that
        were given through the shared server's socket count. A server without tokens and without a socket is open."""
        self._load = load
        self._tokens_file = tokens_file
        self._by_socket = by_socket
        self._by_token = by_token
        self._tokens: Mapping[str, str] | None = None
        self._seen: object = None
        self._looked_at = -_LOOK_AGAIN

    @property
    def takes_tokens(self) -> bool:
        return bool(self._current())

    @property
    def is_open(self) -> bool:
        """Whether everybody who reaches this server is its user."""
        return not self._by_socket and not self._current()

    def anybody(self) -> Identity | None:
        """Who comes without a ticket and without a token; None if nobody may."""
        return Identity(LOCAL, OPEN) if self.is_open else None

    def of_user(self) -> Identity:
        """The user of the shared server, who has asked through its socket."""
        return Identity(LOCAL, SOCKET)

    def by_token(self, token: str) -> Identity | None:
        """Whose token this is. Every one is compared, so that the time tells nothing about which one fits."""
        candidate, found = token.encode("utf-8", "surrogatepass"), None
        for known, principal in self._current().items():
            if hmac.compare_digest(candidate, known.encode()):
                found = Identity(principal, _credential(known))
        return found

    def stands(self, identity: Identity) -> bool:
        """Whether what a ticket or a sign-in rests on still holds here."""
        if identity.credential == OPEN:
            return self.is_open
        if identity.credential == SOCKET:
            return self._by_socket
        return any(
            hmac.compare_digest(identity.credential, _credential(token))
            for token, principal in self._current().items()
            if principal == identity.principal
        )

    def _current(self) -> Mapping[str, str]:
        """The tokens as they are now. UpstreamUnavailable while their file cannot be used: nobody is let in then, and
        nobody's sign-in ends either."""
        if not self._by_token:
            return {}
        now = time.monotonic()
        if self._tokens is not None and now - self._looked_at < _LOOK_AGAIN:
            return self._tokens
        seen = self._look()
        if self._tokens is None or seen != self._seen:
            self._tokens = None
            try:
                self._tokens = dict(self._load())
            except ClaudeCodeError as error:
                log.error("nobody can sign in: %s", error.message)
                raise UpstreamUnavailable("The tokens of this server cannot be read just now.") from None
            self._seen = seen
        self._looked_at = now
        return self._tokens

    def _look(self) -> object:
        if self._tokens_file is None:
            return None
        try:
            found = os.stat(self._tokens_file)
        except OSError:
            return "missing"
        return found.st_mtime_ns, found.st_size, found.st_ino


def _credential(token: str) -> str:
    return f"token:{hashlib.sha256(token.encode()).hexdigest()}"
