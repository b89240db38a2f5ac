"""An HTTP proxy of the server: the only way out of a sandbox that may reach listed hosts.

The server resolves names outside of the sandbox, in a few threads for each session, so that slow lookups delay only
the session that asks for them.

Guarantees:

- A request for a host and port that no rule covers is refused with 403 and a sentence that names the list. A name is
  resolved once, and the connection goes to the checked address. An address that is not public is refused unless the
  list contains it.
- The bytes of a `CONNECT` tunnel are not read, except for a host with a credential: there the proxy speaks TLS on both
  sides, and each request inside must name the host of the tunnel, in SNI and in its Host header. The credential
  replaces the request's own header; the session never has it. Other `http:` requests are forwarded unchanged.
  Credentials are sent unencrypted only to this machine's loopback.
- Connections, heads, waits and buffers are bounded. Nothing blocks, and a slow side is not read from.

Refusals and uses of a credential are in the audit trail: the first of its kind at once, identical later ones as a
count, after a while and at the end. A session that asks ten thousand times cannot push other events out of the trail.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import h11

from ....core.errors import InvalidArgument
from ....core.log_limit import FoldedLog
from ....core.model.events import AuditEvent, AuditKind
from ....core.model.network import (
    Address,
    Audit,
    CredentialRule,
    HostRule,
    NetworkRules,
    host_name,
    is_public,
    may_lead_to,
    read_address,
    rule_for,
    split_port,
)
from .http_exchange import (
    IDLE,
    PIECE,
    Credential,
    ExchangeFailed,
    HttpPeer,
    exchange,
    forwarded,
    is_reflecting,
    read_credential,
    readable_target,
    same_host,
)

_MAX_THREADS = 2
"""Threads of the shared pool that one session uses at once."""
_MAX_LOOKUPS = 4
"""Concurrent name lookups of one session."""
_MAX_ADDRESSES = 8

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]


class AddressRefused(Exception):
    """A host has no address that may be connected to; the text says why."""


class NameLookups:
    """The name lookups of one session, in threads that no other session uses. Name servers can be slow, so these
    threads do not delay the end of the process."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_MAX_LOOKUPS)

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """The addresses of a host, as strings. Raises OSError, UnicodeError."""
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[Any]] = loop.create_future()

        def end(settle: Callable[[Any], None], value: object) -> None:
            # Only here: a lookup whose caller is gone still occupies its thread.
            self._free.release()
            if not found.done():
                settle(value)

        def look() -> None:
            settle: Callable[[Any], None]
            value: object
            try:
                settle, value = found.set_result, socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except Exception as error:
                settle, value = found.set_exception, error
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(end, settle, value)

        await self._free.acquire()
        try:
            threading.Thread(target=look, name="proxy-lookup", daemon=True).start()
        except BaseException:
            self._free.release()
            raise
        return [str(entry[4][0]) for entry in await found]


async def checked_addresses(
    rules: Sequence[HostRule], rule: HostRule, host: str, port: int, lookup: Lookup
) -> list[Address]:
    """The permitted addresses of a host: public ones, and others in the list. Raises AddressRefused if there are none;
    OSError if the host is unknown."""
    literal = read_address(host)
    texts = [host] if literal is not None else await lookup(host, port)
    addresses = [address for address in map(read_address, texts) if address is not None]
    allowed = [address for address in addresses if is_public(address) or may_lead_to(rules, rule, address, port)]
    if not allowed:
        raise AddressRefused("its address is not public, and the list does not allow it")
    # Each address is tried in turn, and an untrusted name server may return any number.
    return list(dict.fromkeys(allowed))[:_MAX_ADDRESSES]


# -- notes ------------------------------------------------------------------------------------------------------------


_TOGETHER = 10.0
"""Seconds for which equal notes are counted before they are written."""
_MAX_KINDS = 200
"""Maximum number of different notes in that time; all others count as one."""
_OTHERS = "(others)"

Kind = tuple[AuditKind, tuple[tuple[str, str], ...]]


class ProxyNotes:
    """The audit notes of one session's proxy."""

    def __init__(self, audit: Audit, who: str, session_id: str | None) -> None:
        self._audit = audit
        self._who = who
        self._session_id = session_id
        self._counted: dict[Kind, int] = {}
        """By kind, the number since the last one was written."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def owner(self) -> str:
        """The proxy's owner, for the log."""
        return f"session {self._session_id} of {self._who}" if self._session_id else self._who

    def refused(self, host: str, port: int, why: str) -> None:
        self._note(AuditKind.NETWORK_REFUSED, host=f"{host}:{port}", why=why)

    def used(self, host: str, port: int, header: str, source: str) -> None:
        """A credential was added to a request. Records its source, not its value."""
        self._note(AuditKind.CREDENTIAL_USED, host=f"{host}:{port}", header=header, source=source)

    def _note(self, kind: AuditKind, **details: str) -> None:
        key: Kind = kind, tuple(details.items())
        if key not in self._counted and len(self._counted) >= _MAX_KINDS:
            # The sandbox chooses what it requests: an unlimited number of names must fill neither memory nor the trail.
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
        """Writes the counted notes."""
        if self._timer is not None:
            self._timer.cancel()
        self._write_counted()


# -- proxy ------------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

_MAX_CONNECTIONS = 128
_HEAD_SECONDS = 30.0
_CONNECT_SECONDS = 30.0
_HTTP, _HTTPS = 80, 443


class _Refused(Exception):
    """A refused request: status and message."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class SandboxProxy:
    """Serves the connections of one sandbox."""

    def __init__(
        self,
        rules: NetworkRules,
        environment: Mapping[str, str],
        context_for: Callable[[str], Awaitable[ssl.SSLContext]] | None,
        notes: ProxyNotes,
        *,
        lookup: Lookup | None = None,
        trust: Callable[[], ssl.SSLContext] = ssl.create_default_context,
    ) -> None:
        """`environment` contains credentials. If there are any, `context_for` creates the TLS context with which a
        client of a host is answered, and `trust` the context for connections to the host. `lookup` stands for this
        machine's name servers."""
        self._rules = rules
        self._environment = environment
        self._context_for = context_for
        self._notes = notes
        self._lookup = lookup or NameLookups().addresses
        self._log = FoldedLog(log, notes.owner)
        self._threads = asyncio.Semaphore(_MAX_THREADS)
        self._trusted_authorities = trust
        self._connections: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Ends every connection."""
        for connection in self._connections:
            connection.cancel()
        self._notes.close()
        self._log.close()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection from inside, until it ends."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        client = HttpPeer(reader, writer, h11.SERVER)
        try:
            if len(self._connections) > _MAX_CONNECTIONS:
                raise _Refused(503, f"A session may have at most {_MAX_CONNECTIONS} connections.")
            await self._serve(client)
        except _Refused as refusal:
            with contextlib.suppress(ExchangeFailed):
                await client.answer(refusal.status, f"claude-code-mcp: {refusal.text}", [("X-Refused-By", "policy")])
        except ExchangeFailed as error:
            log.debug("a connection of %s ended: %s", self._notes.owner, error)
            with contextlib.suppress(ExchangeFailed):
                await client.answer(400, f"claude-code-mcp: {error}")
        except (OSError, ssl.SSLError) as error:
            log.debug("a connection of %s broke: %r", self._notes.owner, error)
        except asyncio.CancelledError:
            pass  # the session is gone
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, client: HttpPeer) -> None:
        event = await client.event(_HEAD_SECONDS)
        if not isinstance(event, h11.Request):
            return  # it closed the connection
        if event.method == b"CONNECT":
            await self._tunnel(client, event)
        else:
            await self._plain(client, event)

    # -- decisions ------------------------------------------------------------------------------------------------

    def _rule(self, host: str, port: int) -> HostRule:
        rule = rule_for(self._rules.hosts, host, port)
        if rule is None:
            self._notes.refused(host, port, "not on the list")
            raise _Refused(
                403,
                f"{host}:{port} is not a host that this session may reach. The policy allows: {self._rules.named()}.",
            )
        return rule

    async def _open(
        self, host: str, port: int, rule: HostRule, context: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Address]:
        """Opens a connection to a host, at a checked address."""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                addresses = await checked_addresses(self._rules.hosts, rule, host, port, self._lookup)
                return await _first_open(addresses, host, port, context)
        except AddressRefused as error:
            self._notes.refused(host, port, "its address is not public")
            raise _Refused(403, f"{host}:{port} is not allowed: {error}.") from None
        except TimeoutError:
            raise _Refused(504, f"{host}:{port} did not answer in time.") from None
        except (OSError, ssl.SSLError, UnicodeError) as error:
            raise _Refused(502, f"{host}:{port} cannot be reached: {error}.") from None

    async def _credential(self, rule: CredentialRule) -> Credential:
        try:
            async with self._threads:
                return await asyncio.to_thread(read_credential, rule, self._environment)
        except InvalidArgument as error:
            self._log.warning("%s cannot use the credential for %s: %s", rule.rule.text, error.message)
            raise _Refused(502, f"The credential for {rule.rule.text} cannot be read by the server.") from None

    # -- CONNECT --------------------------------------------------------------------------------------------------

    async def _tunnel(self, client: HttpPeer, request: h11.Request) -> None:
        host, port = _authority(request.target, None)
        rule, credential = self._rule(host, port), self._rules.credential_for(host, port)
        # Data that has already arrived is in h11's buffer and would be missing from the tunnel.
        if client.http.trailing_data[0]:
            raise _Refused(400, "The client sent data before the tunnel was open.")
        if credential is not None:
            await self._intercept(client, host, port, rule, credential)
            return
        reader, writer, _ = await self._open(host, port, rule)
        try:
            await _accept(client)
            await _join(client, reader, writer)
        finally:
            writer.close()

    async def _intercept(
        self, client: HttpPeer, host: str, port: int, rule: HostRule, credential: CredentialRule
    ) -> None:
        assert self._context_for is not None
        async with self._threads:
            context = await self._context_for(host)
        # Both connections exist before the client learns that the tunnel is open: an unreachable host is a refusal.
        async with self._threads:
            upstream = await asyncio.to_thread(self._trusted_authorities)
        upstream.set_alpn_protocols(["http/1.1"])
        reader, writer, _ = await self._open(host, port, rule, upstream)
        try:
            await _accept(client)
            await _start_tls(client.writer, context, host)
            inside = HttpPeer(client.reader, client.writer, h11.SERVER)
            await self._requests(inside, HttpPeer(reader, writer, h11.CLIENT), host, port, credential)
        finally:
            writer.close()

    async def _requests(self, client: HttpPeer, server: HttpPeer, host: str, port: int, rule: CredentialRule) -> None:
        """Serves the requests in a tunnel, one after the other."""
        while True:
            request = await client.event(IDLE)
            if not isinstance(request, h11.Request):
                return
            try:
                await self._check_inside(request, host, port)
                sent = await self._with_credential(request, request.target, host, port, rule, last=False)
                again = await exchange(client, server, sent[0], sent[1], last=False)
            except _Refused as refusal:
                await client.answer(refusal.status, f"claude-code-mcp: {refusal.text}", [("X-Refused-By", "policy")])
                return
            if not again:
                return
            client.http.start_next_cycle()
            server.http.start_next_cycle()

    async def _check_inside(self, request: h11.Request, host: str, port: int) -> None:
        """A tunnel is for one host: a request in it for another one would get that host's credential."""
        hosts = [value.decode("latin-1") for name, value in request.headers if name.lower() == b"host"]
        if len(hosts) != 1 or not same_host(hosts[0], host, port, _HTTPS) or not request.target.startswith(b"/"):
            self._notes.refused(host, port, "a request in the tunnel was for another host")
            raise _Refused(421, f"Requests in this tunnel must be for {host}.")

    async def _with_credential(
        self, request: h11.Request, target: bytes, host: str, port: int, rule: CredentialRule, *, last: bool
    ) -> tuple[h11.Request, Credential]:
        if is_reflecting(request.method):
            self._notes.refused(host, port, "a method that echoes the request")
            raise _Refused(403, f"{request.method.decode('latin-1')} is not allowed for a host with a credential.")
        credential = await self._credential(rule)
        usual = _HTTP if last else _HTTPS
        # Before it is sent: every use must be in the trail, even if sending fails.
        self._notes.used(host, port, rule.header, rule.source)
        return forwarded(request, target, _written(host, port, usual), credential, last=last), credential

    # -- plain requests -------------------------------------------------------------------------------------------

    async def _plain(self, client: HttpPeer, request: h11.Request) -> None:
        host, port, target = _absolute(request.target)
        rule, wanted = self._rule(host, port), self._rules.credential_for(host, port)
        reader, writer, address = await self._open(host, port, rule)
        try:
            credential = None
            if wanted is None:
                sent = forwarded(request, target, _written(host, port, _HTTP), None, last=True)
            elif address.is_loopback:
                sent, credential = await self._with_credential(request, target, host, port, wanted, last=True)
            else:
                self._notes.refused(host, port, "a credential over an unencrypted connection")
                raise _Refused(403, f"{host} has a credential, which is sent only over https.")
            try:
                await exchange(client, HttpPeer(reader, writer, h11.CLIENT), sent, credential, last=True)
            except ExchangeFailed as error:
                raise _Refused(502, f"{host}:{port} failed: {error}.") from None
        finally:
            writer.close()


async def _first_open(
    addresses: Sequence[Address], host: str, port: int, context: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Address]:
    """A connection to the first of these addresses that accepts one. Raises OSError."""
    problem: OSError = OSError("it has no address")
    for address in addresses:
        try:
            name = host if context is not None else None
            opened = await asyncio.open_connection(str(address), port, ssl=context, server_hostname=name, limit=PIECE)
        # Before OSError, its base class: an invalid certificate must be reported and not be hidden by the next address.
        except ssl.SSLError:
            raise
        except OSError as error:
            problem = error
        else:
            return *opened, address
    raise problem


async def _accept(client: HttpPeer) -> None:
    await client.send(h11.Response(status_code=200, reason=b"Connection established", headers=[]))


async def _start_tls(writer: asyncio.StreamWriter, context: ssl.SSLContext, host: str) -> None:
    """Starts TLS with the client, which must ask for exactly this host if it names one."""

    def check(_: ssl.SSLObject, name: str | None, __: ssl.SSLContext) -> int | None:
        try:
            return None if name is None or host_name(name) == host else ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        except ValueError:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

    # The context is for this host only, so the check is valid for every connection that uses it.
    context.sni_callback = check
    await writer.start_tls(context, ssl_handshake_timeout=_HEAD_SECONDS)


async def _join(client: HttpPeer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forwards bytes in both directions until both have ended or neither has moved for too long."""
    moved = asyncio.Event()

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        # An error in one direction does not end the other: a server may still send its answer.
        with contextlib.suppress(OSError):
            while data := await source.read(PIECE):
                moved.set()
                target.write(data)
                await target.drain()
            # One direction of a connection may end before the other. TLS cannot express that, so the final close must
            # suffice.
            if target.can_write_eof():
                target.write_eof()

    pumps = [asyncio.ensure_future(pump(client.reader, writer)), asyncio.ensure_future(pump(reader, client.writer))]
    over = asyncio.ensure_future(asyncio.wait(pumps))
    try:
        while not over.done():
            moved.clear()
            await asyncio.wait([over], timeout=IDLE)
            if not over.done() and not moved.is_set():
                return
    finally:
        for task in (*pumps, over):
            task.cancel()
        await asyncio.wait([*pumps, over])


def _authority(target: bytes, usual: int | None) -> tuple[str, int]:
    """The host and port of a target such as `example.org:443`."""
    text = readable_target(target)
    try:
        host, port = split_port(text or "")
        port = port or usual
        if port is None or text is None or "@" in text:
            raise ValueError
        return host_name(host), port
    except ValueError:
        raise _Refused(400, "The target must be HOST:PORT.") from None


def _absolute(target: bytes) -> tuple[str, int, bytes]:
    """Host, port and path of a target such as `http://example.org/path`."""
    text = readable_target(target)
    scheme, separator, rest = (text or "").partition("://")
    if not separator or scheme.lower() != "http":
        raise _Refused(400, "This is a proxy: the target must be an http address, or CONNECT for https.")
    try:
        parts = urlsplit(f"//{rest}")
    except ValueError:
        raise _Refused(400, "The target must be an http address.") from None
    host, port = _authority(parts.netloc.encode(), _HTTP)
    path = parts.path or "/"
    return host, port, (path + (f"?{parts.query}" if parts.query else "")).encode()


def _written(host: str, port: int, usual: int) -> str:
    name = f"[{host}]" if ":" in host else host
    return name if port == usual else f"{name}:{port}"
