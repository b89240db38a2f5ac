"""The public address of the embedded authorization server."""

import ipaddress
from urllib.parse import urlsplit

from ....core.config import Settings
from ....core.errors import InvalidArgument
from ....server.transports.http import Address


def own_origin(settings: Settings, address: Address) -> str:
    """The public address of the embedded authorization server: from the settings or, on this machine only, `localhost`.
    Raises InvalidArgument if passkeys cannot be used there: browsers bind them to a host name and require encryption,
    except for `localhost`."""
    if settings.web_url is None and not address.loopback:
        raise InvalidArgument(
            "People sign in at the public address of this server: set CLAUDE_CODE_MCP_WEB_URL to it, such as "
            "https://claude.example.org."
        )
    origin = (settings.web_url or f"http://localhost:{address.port}").rstrip("/")
    host = urlsplit(origin).hostname or ""
    if host != "localhost" and (not origin.startswith("https://") or _is_ip_address(host)):
        raise InvalidArgument(
            "Browsers accept passkeys only for a host name with https, or for localhost; CLAUDE_CODE_MCP_WEB_URL is "
            f"{origin}."
        )
    return origin


def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
