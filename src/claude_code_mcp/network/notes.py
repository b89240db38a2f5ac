"""What the proxy of one session writes to the audit trail: every refusal and every use of a credential, counted.

The first of a kind is written at once. Those that are just like it are counted and written together after a while, and
at the end: a session that asks ten thousand times must not push everything else out of the trail.
"""

import asyncio
from typing import Any

from ..model.events import AuditEvent, AuditKind
from .network_rules import Audit

_TOGETHER = 10.0
"""Seconds for which equal ones are counted before they are written."""
_MOST_KINDS = 200
"""Different ones within that time; all others count as one."""
_OTHERS = "(others)"

Kind = tuple[AuditKind, tuple[tuple[str, str], ...]]


class ProxyNotes:
    """The notes of one session's proxy."""

    def __init__(self, audit: Audit, who: str, session_id: str | None) -> None:
        self._audit = audit
        self._who = who
        self._session_id = session_id
        self._counted: dict[Kind, int] = {}
        """By kind, how many there were since the last was written."""
        self._timer: asyncio.TimerHandle | None = None

    def refused(self, host: str, port: int, why: str) -> None:
        self._note(AuditKind.NETWORK_REFUSED, host=f"{host}:{port}", why=why)

    def used(self, host: str, port: int, header: str, source: str) -> None:
        """A credential was put into a request. What it is from is said, not what it is."""
        self._note(AuditKind.CREDENTIAL_USED, host=f"{host}:{port}", header=header, source=source)

    def _note(self, kind: AuditKind, **details: str) -> None:
        key: Kind = kind, tuple(details.items())
        if key not in self._counted and len(self._counted) >= _MOST_KINDS:
            key = kind, (("host", _OTHERS),)
        if key in self._counted:
            self._counted[key] += 1
            return
        self._counted[key] = 0
        self._write(key, 1)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TOGETHER, self._write_counted)

    def _write_counted(self) -> None:
        self._timer = None
        counted, self._counted = self._counted, {}
        for key, count in counted.items():
            if count:
                self._write(key, count)

    def _write(self, key: Kind, count: int) -> None:
        kind, fields = key
        details: dict[str, Any] = {**dict(fields), "count": count}
        self._audit(AuditEvent(kind, self._who, self._session_id, details))

    def close(self) -> None:
        """Writes what was counted."""
        if self._timer is not None:
            self._timer.cancel()
        self._write_counted()
