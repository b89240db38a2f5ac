"""People with access tokens of an issuer (the operator's or this server's own), and people who signed in there for the
console.

Each is a caller under the name that the issuer gives them. A name belongs to the first subject of an issuer that uses
it, also after restarts: the next owner at the provider does not get their sessions. The operator releases it with
`claude-code-mcp people forget NAME`. Invited people own their name from the invitation on, and are removed with
everything that runs. Names of callers with static tokens, and reserved names, are unavailable.

Groups come from the latest token. They are stored, and apply after a restart until the next token.
"""

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple

from ...core import json_text
from ...core.errors import UpstreamUnavailable
from ...core.model.caller import is_reserved
from ...server.transports.identity import Identity
from .access_tokens import Grant
from .person_names import PersonGroups, PersonNames

log = logging.getLogger(__name__)

_MAX_GRANTED = 10_000
_NOTED_FOR = 86_400.0
"""Seconds between two records of a person's visits."""
_PERSON = "person:"
"""Prefix of the credentials of people with access tokens."""

Admit = Callable[[str, Collection[str]], Awaitable[str | None]]
"""Why a person with these groups cannot be served; None if they can."""
Assign = Callable[[str, Collection[str]], None]  # assigns a caller's groups
Returning = Callable[[str], Awaitable[tuple[Grant, float] | None]]  # who is signed in by this name, until when


class _Person(NamedTuple):
    """A person with an access token, and when the newest one ends."""

    subject: str
    expires_at: float
    scopes: tuple[str, ...]
    issued_at: float  # of the token that says which groups they are in


class People:
    """The people of one issuer, or of the proxies in front of this server."""

    def __init__(
        self,
        issuer: str,
        admit: Admit,
        assign: Assign | None,
        names: PersonNames | None,
        is_taken: Callable[[str], bool],
        returning: Returning | None = None,
        remembered: Mapping[str, PersonGroups] | None = None,
    ) -> None:
        """`admit` is called before a person is admitted, then `assign`. `is_taken` returns whether a caller with a
        static token has a name. Without `names`, the owners of names are known until this server ends. `returning`
        finds people who signed in before this server started. `remembered` are earlier people with their groups; if
        None, those in `names`. Blocks on the disk."""
        self._issuer = issuer
        self._admit = admit
        self._assign = assign
        self._names = names
        self._is_taken = is_taken
        self._returning = returning
        self._gone: set[str] = set()
        """Subjects of people who were removed while this server runs. Subjects are never reused."""
        self._known: OrderedDict[str, _Person] = OrderedDict()
        """By name; the least recent callers are dropped first."""
        self._remembered = dict(self._from_before() if remembered is None else remembered)
        """The groups, by name, of people who signed in to this or an earlier server."""
        self._noted: dict[str, float] = {}
        """When a person's groups were written."""
        if assign is not None:
            for name, groups in self._remembered.items():
                assign(name, groups.names)

    def _from_before(self) -> Mapping[str, PersonGroups]:
        try:
            return self._names.recent_people(self._issuer) if self._names is not None else {}
        except OSError as error:
            log.error("cannot read who signed in to earlier servers: %s", error)
            return {}

    async def admit_grant(self, grant: Grant, until: float) -> Identity | None:
        """The caller for a person with this grant, valid at least until then; None if their name is taken or they
        cannot be served, which is logged. Raises UpstreamUnavailable if that cannot be determined now."""
        if not self._is_free(grant) or not await self._own_name(grant):
            return None
        # An earlier token must not set the groups: a person could return to a group by showing an old token.
        outdated = self._is_outdated(grant)
        if not outdated or grant.name not in self._known:
            groups = self._remembered[grant.name].names if outdated else grant.groups
            reason = await self._admit(grant.name, groups)
            if reason is not None:
                log.error("%s has a valid access token but is not admitted: %s", grant.name, reason)
                return None
        if not outdated:
            await self._remember(grant)
        # Checked again: the list of callers may have changed meanwhile, or another person may have taken the name. No
        # await from here on, and the groups are assigned only then, so that one person cannot change another's
        # permissions.
        if not self._is_free(grant):
            return None
        known = self._known.get(grant.name)
        # By what is known now: a newer token may have been shown meanwhile.
        if not self._is_outdated(grant) and self._assign is not None:
            self._assign(grant.name, grant.groups)
        issued_at = max(grant.issued_at, self._issued_at(grant.name))
        # What rests on the sign-in of the console outlasts the tokens of clients.
        until = until if known is None else max(until, known.expires_at)
        self._known[grant.name] = _Person(grant.subject, until, grant.scopes, issued_at)
        self._known.move_to_end(grant.name)
        while len(self._known) > _MAX_GRANTED:
            self._known.popitem(last=False)
        return self._identity_of(grant.name, grant.subject)

    def _is_free(self, grant: Grant) -> bool:
        """Whether the person with this subject can have a name: no caller with a static token and no other person has
        it."""
        if is_reserved(grant.name) or self._is_taken(grant.name):
            log.error("rejected an access token: the name %s belongs to a caller with a static token", grant.name)
            return False
        known = self._known.get(grant.name)
        if grant.subject in self._gone or (known is not None and known.subject != grant.subject):
            log.error("rejected an access token: the name %s belongs to another person", grant.name)
            return False
        return True

    async def _own_name(self, grant: Grant) -> bool:
        """Whether the person owns the name permanently; a free name becomes theirs."""
        if self._names is None or grant.name in self._known:
            return True
        try:
            own = await asyncio.to_thread(self._names.take, grant.name, self._issuer, grant.subject)
        except OSError as error:
            # The owner is unknown: admitting this person could open another person's sessions.
            log.error("cannot read who owns the name %s: %s", grant.name, error)
            raise UpstreamUnavailable("Your account cannot be looked up at the moment.") from None
        if not own:
            log.error(
                "rejected an access token: the name %s belonged to another person; `claude-code-mcp people forget %s` "
                "releases it",
                grant.name,
                grant.name,
            )
        return own

    async def _remember(self, grant: Grant) -> None:
        """Stores a person's groups if they changed, and once a day. Concurrent tokens may be stored in the wrong order:
        the next request corrects it."""
        groups, now = PersonGroups(frozenset(grant.groups), grant.issued_at), time.time()
        before, fresh = self._remembered.get(grant.name), now - self._noted.get(grant.name, 0.0) < _NOTED_FOR
        if self._names is None or (fresh and before is not None and before.names == groups.names):
            return
        try:
            await asyncio.to_thread(self._names.note_groups, grant.name, self._issuer, groups)
        except OSError as error:
            log.warning("the groups of %s could not be saved and will be lost in a restart: %s", grant.name, error)
        self._noted[grant.name], self._remembered[grant.name] = now, groups

    def _is_outdated(self, grant: Grant) -> bool:
        """Whether a person has shown a newer token than this one, here or to an earlier server."""
        return self._issued_at(grant.name) > grant.issued_at

    def _issued_at(self, name: str) -> float:
        """When the newest token shown under this name was issued; 0 without one."""
        known, remembered = self._known.get(name), self._remembered.get(name)
        return known.issued_at if known is not None else remembered.issued_at if remembered is not None else 0.0

    async def take_back(self, identity: Identity) -> None:
        """Admits a person again who is signed in from before this server started and has not returned since. Raises
        UpstreamUnavailable if that cannot be determined now."""
        if self._returning is None or identity.principal in self._known:
            return
        signed_in = await self._returning(identity.principal)
        if signed_in is not None:
            await self.admit_grant(*signed_in)

    def expires_at(self, identity: Identity) -> float | None:
        """Until when this person is admitted by what they have shown; None if they are not."""
        # Checks the person and not only the name: after a restart, earlier sign-ins are still on the disk.
        person = self._known.get(identity.principal)
        if person is None or self._identity_of(identity.principal, person.subject) != identity:
            return None
        return person.expires_at if person.expires_at > time.time() else None

    def has(self, identity: Identity) -> bool:
        """Whether this person is known."""
        person = self._known.get(identity.principal)
        return person is not None and self._identity_of(identity.principal, person.subject) == identity

    def scopes_of(self, identity: Identity) -> Collection[str]:
        """The scopes of a person's newest access token."""
        person = self._known.get(identity.principal)
        return person.scopes if person is not None else ()

    def knows(self, name: str) -> bool:
        return name in self._known

    def remembers(self, name: str) -> bool:
        """Whether a person with this name has signed in to this or an earlier server and is not removed."""
        return name in self._known or name in self._remembered

    def drop(self, names: Collection[str]) -> list[Identity]:
        """Removes the people with these names; returns them."""
        found = [name for name in self._known if name in names]
        return [self._identity_of(name, self._known.pop(name).subject) for name in found]

    def end(self, name: str, subject: str | None) -> list[Identity]:
        """Removes the person with this name until they return and, with a `subject`, permanently; returns them."""
        if subject is not None:
            self._gone.add(subject)
            self._remembered.pop(name, None)
        return self.drop([name])

    def _identity_of(self, name: str, subject: str) -> Identity:
        """Equal for all tokens of one person, so that a connection continues with the next one."""
        encoded = json_text.encode([self._issuer, subject])
        return Identity(name, f"{_PERSON}{hashlib.sha256(encoded).hexdigest()}")
