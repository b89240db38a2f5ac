"""The clients of the embedded authorization server: which metadata is trusted, and where browsers are redirected.

A client describes itself, by registering (RFC 7591) or in a document at the https address that is its id (Client ID
Metadata Documents). Its name is shown to people as text and has no effect. A browser is redirected with a code only to
an address that the client has listed, compared literally. Accepted are https, loopback addresses of the person's own
machine, schemes that are a reversed domain, and a few known schemes of editors.

On loopback any port is accepted, because programs use whichever is free (RFC 8252, 7.3). `localhost`, `127.0.0.1` and
`[::1]` are the same machine: a client that has listed one of them may use the others. Clients have no secrets, because
anybody can register.

A document is read from a public address only, which is resolved once. Redirects are not followed, and responses are
limited in size and time.
"""

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpx2
from mcp.shared.auth import InvalidRedirectUriError, OAuthClientInformationFull
from pydantic import AnyUrl, ValidationError

from ....core import json_text
from ....core.errors import InvalidArgument
from ....core.model.text import one_line, visible
from ....server.outbound_urls import NotPublic, check_url, looked_up
from ....server.transports.callers import SCOPE

_MAX_ADDRESSES = 10
_MAX_ADDRESS = 1000
_MAX_NAME = 80
_LOOPBACK_NAMES = frozenset({"127.0.0.1", "::1", "localhost"})
_OF_EDITORS = frozenset({"claude", "cursor", "vscode", "vscode-insiders", "windsurf", "zed"})
"""Schemes of known MCP clients that are not domain names."""
_OF_DOMAIN = re.compile(r"(?:[a-z]{2,24}|xn--[a-z0-9-]{1,40})(?:\.[a-z0-9](?:[a-z0-9-]{0,40}[a-z0-9])?){1,8}")
"""A scheme that is a reverse domain of the program's vendor, such as `com.example.app` (RFC 8252, 7.1 and 8.4). The
schemes that browsers, phones and desktops handle themselves have no dot, or do not begin with a domain."""
_NETLOC = re.compile(r"[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")

_MAX_DOCUMENT = 16 << 10
_TIMEOUT = 5.0
_KEPT = 600.0
_FAILURE_KEPT = 30.0
_MAX_KEPT = 200
_MAX_CONCURRENT = 32


class KnownClient(OAuthClientInformationFull):
    """A client in the form that the MCP SDK uses."""

    def validate_scope(self, requested_scope: str | None) -> list[str] | None:
        """There is one scope. A client that requests others gets that one, and the token says so."""
        return [SCOPE]

    def validate_redirect_uri(self, redirect_uri: AnyUrl | None) -> AnyUrl:
        named = self.redirect_uris or []
        if redirect_uri is not None:
            wanted = str(redirect_uri)
            # Normalized like the address in a request by the SDK: without a path it gets a slash.
            spelled = [str(AnyUrl(str(address))) for address in named]
            if wanted in spelled or any(_same_on_loopback(wanted, address) for address in spelled):
                return redirect_uri
        elif len(named) == 1:
            return named[0]
        raise InvalidRedirectUriError("The client has not registered this redirect address.")


def _same_on_loopback(wanted: str, named: str) -> bool:
    """Whether both addresses are on the user's own machine and differ only in its name and the port."""
    first, second = urlsplit(wanted), urlsplit(named)
    for parts in (first, second):
        if parts.scheme != "http" or parts.hostname not in _LOOPBACK_NAMES:
            return False
        # A name and password before the host would make it look like another host.
        if parts.username is not None or parts.password is not None:
            return False
    return (first.path, first.query, first.fragment) == (second.path, second.query, second.fragment)


def redirect_origin(address: str) -> str:
    """The origin that a browser is sent to, in the notation of a page's policy. Raises ValueError if browsers must not
    be sent there."""
    parts = urlsplit(address)
    scheme = parts.scheme.lower()
    if len(address) > _MAX_ADDRESS or not address.isascii() or not address.isprintable() or " " in address:
        raise ValueError("it is too long or has characters that a URL cannot contain")
    if parts.fragment or parts.username is not None or parts.password is not None:
        raise ValueError("it has a fragment or a user name and password")
    if scheme in ("http", "https"):
        if _NETLOC.fullmatch(parts.netloc) is None or parts.port == 0:
            raise ValueError("it has no host or no valid port")
        if scheme == "http" and parts.hostname not in _LOOPBACK_NAMES:
            raise ValueError("it is neither encrypted nor on the person's own machine")
        return f"{scheme}://{parts.netloc}"
    if scheme not in _OF_EDITORS and _OF_DOMAIN.fullmatch(scheme) is None:
        raise ValueError("it must be https, http on the person's own machine, or have a scheme such as com.example.app")
    return f"{scheme}:"


def is_at(address: str, origin: str) -> bool:
    """Whether an address is at an origin, in any spelling. Raises ValueError like `redirect_origin`."""
    redirect_origin(address)
    return _canonical(address) == _canonical(origin)


def _canonical(address: str) -> tuple[str, str, int | None]:
    parts = urlsplit(address)
    host = (parts.hostname or "").rstrip(".")  # a trailing dot leads to the same server
    host = "localhost" if host in _LOOPBACK_NAMES else host
    return parts.scheme, host, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def has_good_addresses(client: KnownClient) -> bool:
    """Whether browsers may be sent to all of a client's addresses."""
    try:
        return all(redirect_origin(str(address)) for address in client.redirect_uris or ())
    except ValueError:
        return False


def client_from(metadata: Mapping[str, Any], client_id: str, own_origin: str) -> KnownClient:
    """A client from its own description, reduced to the trusted fields. Raises ValueError, with the reason, if it is
    not acceptable."""
    addresses = metadata.get("redirect_uris")
    if not isinstance(addresses, list) or not 0 < len(addresses) <= _MAX_ADDRESSES:
        raise ValueError(f"redirect_uris must be a list of 1 to {_MAX_ADDRESSES} addresses")
    for address in addresses:
        if not isinstance(address, str):
            raise ValueError("redirect_uris must be strings")
        # This server's own pages are no client: one of them could be tricked into acting on another client's data.
        if is_at(address, own_origin):
            raise ValueError("a redirect URI must not point to this server")
    name = metadata.get("client_name")
    return KnownClient.model_validate(
        {
            "client_id": client_id,
            "client_name": one_line(visible(name), _MAX_NAME) if isinstance(name, str) else None,
            "redirect_uris": addresses,
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
            "scope": SCOPE,
        }
    )


class ClientDocuments:
    """Reads Client ID Metadata Documents and caches them for ten minutes."""

    def __init__(self, own_origin: str, *, private: bool = False) -> None:
        """`private`: also from addresses that are not public, and without encryption."""
        self._own_origin = own_origin
        self._private = private
        self._kept: OrderedDict[str, tuple[float, KnownClient | None]] = OrderedDict()
        self._failed: OrderedDict[str, tuple[float, KnownClient | None]] = OrderedDict()
        """Addresses without a document. Separate, so that strangers cannot displace cached documents."""
        self._reading = asyncio.Semaphore(_MAX_CONCURRENT)

    def is_document(self, client_id: str) -> bool:
        """Whether a client id is the address of a document rather than the id of a registered client."""
        return client_id.startswith("https://") or (self._private and client_id.startswith("http://"))

    def must_read(self, client_id: str) -> bool:
        """Whether a client id is the address of a document that is not cached."""
        return self.is_document(client_id) and self._known(client_id) is None

    def _known(self, client_id: str) -> tuple[float, KnownClient | None] | None:
        known = self._kept.get(client_id) or self._failed.get(client_id)
        return known if known is not None and time.monotonic() < known[0] else None

    async def read(self, client_id: str) -> KnownClient | None:
        """The client with this id; None if there is no such document, or if it is about another client."""
        known = self._known(client_id)
        if known is not None:
            return known[1]
        try:
            # A few at a time: any unauthenticated client can trigger reads.
            async with self._reading:
                found = await self._read(client_id)
        except (NotPublic, InvalidArgument, ValueError, ValidationError, TimeoutError, OSError, httpx2.HTTPError):
            # The reason is not revealed: it would let a client probe what this server can reach.
            found = None
        self._kept.pop(client_id, None)
        self._failed.pop(client_id, None)
        kept, lasts = (self._failed, _FAILURE_KEPT) if found is None else (self._kept, _KEPT)
        kept[client_id] = (time.monotonic() + lasts, found)
        while len(kept) > _MAX_KEPT:
            kept.popitem(last=False)
        return found

    async def _read(self, client_id: str) -> KnownClient:
        parts = check_url(client_id, private=self._private)
        segments = parts.path.split("/")
        if parts.path in ("", "/") or parts.fragment or "." in segments or ".." in segments:
            raise ValueError("not the URL of a document")
        async with asyncio.timeout(_TIMEOUT):
            address = await looked_up(parts, self._private)
            document = json_text.decode(await _get(parts, address))
        if not isinstance(document, dict) or document.get("client_id") != client_id:
            raise ValueError("the document is about another client")
        if document.get("token_endpoint_auth_method", "none") != "none" or "client_secret" in document:
            raise ValueError("clients must not have secrets here")
        return client_from(document, client_id, self._own_origin)


async def _get(parts: SplitResult, address: str) -> bytes:
    """The document at an address that was resolved and checked."""
    literal = f"[{address}]" if ":" in address else address
    port = f":{parts.port}" if parts.port is not None else ""
    url = f"{parts.scheme}://{literal}{port}{parts.path}" + (f"?{parts.query}" if parts.query else "")
    async with (
        # Without the environment's proxies: a proxy would resolve the name again and may reach forbidden addresses.
        httpx2.AsyncClient(timeout=_TIMEOUT, follow_redirects=False, trust_env=False) as http,
        http.stream(
            "GET",
            url,
            headers={"Host": parts.netloc, "Accept": "application/json"},
            # The certificate is checked against the name, although the connection goes to the address.
            extensions={"sni_hostname": parts.hostname},
        ) as answer,
    ):
        if answer.status_code != 200:
            raise ValueError("the document does not exist")
        body = bytearray()
        async for part in answer.aiter_bytes():
            body += part
            if len(body) > _MAX_DOCUMENT:
                raise ValueError("the document is too long")
    return bytes(body)
