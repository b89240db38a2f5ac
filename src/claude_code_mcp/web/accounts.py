"""Who can sign in at this server, and whether what a sign-in rests on still holds.

A sign-in rests on a token (it ends when that token is no longer the principal's), on the socket of the shared server,
which only its own user can reach, or on nothing where the server lets everybody on this machine in.
"""

from ..server.transports.callers import Callers, TokenCaller
from ..service import LOCAL
from ..state.sign_ins import Identity

OPEN, SOCKET = "open", "socket"


class Accounts:
    """Who can sign in at one server."""

    def __init__(self, callers: Callers | None, *, by_socket: bool = False) -> None:
        """`callers` have tokens. `by_socket`: tickets that were given through the shared server's socket count. A
        server that asks for no token and has no socket is open."""
        self._callers = callers
        self._by_socket = by_socket

    @property
    def takes_tokens(self) -> bool:
        return self._callers is not None and self._callers.required

    @property
    def is_open(self) -> bool:
        """Whether everybody who reaches this server is its user."""
        return not self._by_socket and not self.takes_tokens

    def anybody(self) -> Identity | None:
        """Who comes without a ticket and without a token; None if nobody may."""
        return Identity(LOCAL, OPEN) if self.is_open else None

    def of_user(self) -> Identity:
        """The user of the shared server, who has asked through its socket."""
        return Identity(LOCAL, SOCKET)

    async def by_token(self, token: str) -> Identity | None:
        """Whose token this is. UpstreamUnavailable while that cannot be said."""
        caller = None if self._callers is None else await self._callers.by_token(token)
        return None if caller is None else Identity(caller.name, caller.credential)

    async def stands(self, identity: Identity) -> bool:
        """Whether what a ticket or a sign-in rests on still holds here; if so, the request that asks is that caller's
        and ends with it. UpstreamUnavailable while that cannot be said."""
        if identity.credential == OPEN:
            return self.is_open
        if identity.credential == SOCKET:
            return self._by_socket
        caller = TokenCaller(identity.principal, identity.credential)
        if self._callers is None or not await self._callers.stands(caller):
            return False
        self._callers.claim(caller)
        return True

    def has(self, principal: str) -> bool:
        """Whether somebody of this name can sign in, as far as is known."""
        return principal == LOCAL or (self._callers is not None and self._callers.knows(principal))
