"""Tickets and sign-ins on disk: a private file for each, named by the hash of its secret.

They outlive the server, and all servers of the user share them. A ticket is used by removing its file: whoever removes
it has used it, so that of two at the same time one fails, in whatever process. A sign-in lasts as long as its file, and
ends a while after it was last used. The secrets themselves are nowhere: who reads the files can sign in with none of
them. Every method blocks on the disk.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import json_text
from ..config import Settings
from ..private_files import private_directory, read_regular, replace_file

TICKET_SECONDS = 300.0
SIGN_IN_SECONDS = 30 * 86_400.0
"""From its last use on."""
_USE_NOTED = 60.0
"""Seconds between two notes of the same sign-in's use."""
_MOST_OF_ONE = 100
"""Sign-ins, and tickets, of one principal; the oldest end for new ones."""
_LARGEST = 8 << 10
_LONGEST_DEVICE = 80


def web_directory(settings: Settings) -> Path:
    """Where the console keeps what must outlive the server."""
    return settings.state_dir / "web"


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a ticket or a sign-in stands for, and what that rests on: see `Accounts`."""

    principal: str
    credential: str


@dataclass(frozen=True, slots=True)
class SignIn:
    """A device that a person is signed in on."""

    id: str
    identity: Identity
    device: str
    created_at: float
    used_at: float

    @property
    def expires_at(self) -> float:
        return self.used_at + SIGN_IN_SECONDS


@dataclass(frozen=True, slots=True)
class NewSignIn:
    """A sign-in with its two secrets, which are known only now: one for the cookie, one for the page's own storage."""

    sign_in: SignIn
    cookie: str
    csrf: str


class SignIns:
    """Those below one directory."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.time, most: int = _MOST_OF_ONE) -> None:
        """At most so many sign-ins, and so many tickets, of one principal."""
        self._tickets = directory / "tickets"
        self._sign_ins = directory / "sign-ins"
        self._clock = clock
        self._most = most

    # -- tickets --------------------------------------------------------------------------------------------------

    def new_ticket(self, identity: Identity) -> tuple[str, float]:
        """A ticket for one sign-in, and when it expires. Raises OSError."""
        ticket, expires_at = secrets.token_urlsafe(32), self._clock() + TICKET_SECONDS
        self._drop_tickets(identity.principal)
        _write_new(self._tickets / _hash(ticket), {**asdict(identity), "expires_at": expires_at})
        return ticket, expires_at

    def _drop_tickets(self, principal: str) -> None:
        """Those that have expired, and the oldest of this principal if there are too many."""
        kept = []
        for path, fields in _entries(self._tickets):
            if not _number(fields, "expires_at") > self._clock():
                _remove(path)
            elif fields.get("principal") == principal:
                kept.append((_number(fields, "expires_at"), path))
        for _, path in sorted(kept)[: max(0, len(kept) + 1 - self._most)]:
            _remove(path)

    def look_at_ticket(self, ticket: str) -> Identity | None:
        """Whom a ticket is for that can still be used."""
        fields = _read(self._tickets / _hash(ticket))
        if fields is None or not _number(fields, "expires_at") > self._clock():
            return None
        return _identity(fields)

    def use_ticket(self, ticket: str) -> Identity | None:
        """Whom the ticket is for; None if it was never given, has been used or has expired. It is used up by this."""
        path = self._tickets / _hash(ticket)
        fields = _read(path)
        if fields is None or not _remove(path) or not _number(fields, "expires_at") > self._clock():
            return None
        return _identity(fields)

    # -- sign-ins -------------------------------------------------------------------------------------------------

    def begin(self, identity: Identity, device: str) -> NewSignIn:
        """A new sign-in. Raises OSError."""
        cookie, csrf, now = secrets.token_urlsafe(32), secrets.token_urlsafe(32), self._clock()
        older = sorted(self.of(identity.principal), key=lambda sign_in: sign_in.used_at)
        for surplus in older[: max(0, len(older) + 1 - self._most)]:
            self.end(surplus.id, identity.principal)
        sign_in = SignIn(_hash(cookie), identity, device[:_LONGEST_DEVICE], now, now)
        fields = {**asdict(identity), "device": sign_in.device, "csrf": _hash(csrf), "created_at": now}
        _write_new(self._sign_ins / sign_in.id, fields)
        os.utime(self._sign_ins / sign_in.id, (now, now))
        return NewSignIn(sign_in, cookie, csrf)

    def find(self, cookie: str, csrf: str) -> SignIn | None:
        """The sign-in with these two secrets, whose use is noted; None if there is none, or it has expired."""
        path = self._sign_ins / _hash(cookie)
        fields = _read(path)
        if fields is None or not hmac.compare_digest(str(fields.get("csrf")), _hash(csrf)):
            return None
        found = self._sign_in(path, fields)
        if found is None:
            return None
        now = self._clock()
        if now - found.used_at > _USE_NOTED:
            with contextlib.suppress(OSError):
                os.utime(path, (now, now))
        return found

    def stands(self, sign_in_id: str) -> bool:
        """Whether a sign-in that was found before still is there."""
        return (self._sign_ins / sign_in_id).exists()

    def of(self, principal: str) -> list[SignIn]:
        """All sign-ins of a principal, the last used first; expired ones are removed."""
        found = [self._sign_in(path, fields) for path, fields in _entries(self._sign_ins)]
        own = [sign_in for sign_in in found if sign_in is not None and sign_in.identity.principal == principal]
        return sorted(own, key=lambda sign_in: sign_in.used_at, reverse=True)

    def end(self, sign_in_id: str, principal: str) -> bool:
        """Ends a sign-in of this principal; whether there was one."""
        known = {sign_in.id for sign_in in self.of(principal)}
        return sign_in_id in known and _remove(self._sign_ins / sign_in_id)

    def end_all(self, principal: str | None) -> int:
        """Ends all sign-ins and tickets of a principal, or of everybody; how many sign-ins there were."""
        ended = 0
        for folder in (self._tickets, self._sign_ins):
            for path, fields in _entries(folder):
                if principal in (None, fields.get("principal")) and _remove(path):
                    ended += folder is self._sign_ins
        return ended

    def _sign_in(self, path: Path, fields: dict[str, Any]) -> SignIn | None:
        identity = _identity(fields)
        try:
            used_at = path.stat().st_mtime
        except OSError:
            return None
        if identity is None or used_at + SIGN_IN_SECONDS < self._clock():
            _remove(path)
            return None
        return SignIn(path.name, identity, str(fields.get("device", "")), _number(fields, "created_at"), used_at)


def _hash(secret: str) -> str:
    """What stands for a secret on disk; a name for a file, whatever the secret is."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _identity(fields: dict[str, Any]) -> Identity | None:
    principal, credential = fields.get("principal"), fields.get("credential")
    return Identity(principal, credential) if isinstance(principal, str) and isinstance(credential, str) else None


def _number(fields: dict[str, Any], name: str) -> float:
    value = fields.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _write_new(path: Path, fields: dict[str, Any]) -> None:
    private_directory(path.parent)
    replace_file(path, json_text.encode(fields))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        fields = json_text.decode(read_regular(path, _LARGEST))
    except (OSError, ValueError):
        return None
    return fields if isinstance(fields, dict) else None


def _entries(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        fields = _read(folder / name) if not name.startswith(".") else None
        if fields is not None:
            yield folder / name, fields


def _remove(path: Path) -> bool:
    """Whether it was there, and nobody else was faster."""
    try:
        os.unlink(path)
    except OSError:
        return False
    return True
