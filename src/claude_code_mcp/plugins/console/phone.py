"""Makes the console reachable for a phone while `web --tunnel` or `web --lan` runs."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ...core.errors import InvalidArgument, ProcessFailed
from .lan import certificate, lan_address, serve_lan
from .phone_address import PhoneAddress, is_only_here
from .tunnel import TUNNELS, open_tunnel

_LAN_NOTICE = """\
This machine made the certificate itself, so the phone's browser warns once. Compare the fingerprint it shows
(SHA-256) before you continue:
  {fingerprint}
Browsers allow neither Web Push nor installing the page as an app with such a certificate; --tunnel allows both."""


def serve_phone(
    state_dir: Path,
    tunnel: str | None,
    lan: str | None,
    ask: Callable[[], dict[str, Any]],
    show: Callable[[Any], None],
    say: Callable[[str], None],
) -> int:
    """Serves the console for a phone until Ctrl-C, SIGTERM or the end of the tunnel; the value is the exit code.

    `ask` gets a link from the server, `show` prints it, and `say` prints everything else. Raises InvalidArgument and
    ProcessFailed.
    """
    address = ask()["address"]
    if not is_only_here(address):
        raise InvalidArgument(
            f"The console is already served at {address} (CLAUDE_CODE_MCP_WEB_URL or another `web` command). "
            "Run `claude-code-mcp web` for a link."
        )
    port = urlsplit(address).port
    assert port is not None
    try:
        asyncio.run(_serve(state_dir, port, tunnel, lan, ask, show, say))
    except (KeyboardInterrupt, asyncio.CancelledError):
        say("The console is again reachable from this machine only.")
    finally:
        # The server reads the address whenever it creates a link. Links in notifications then lead to this machine
        # again.
        with contextlib.suppress(Exception):
            ask()
    return 0


async def _serve(
    state_dir: Path,
    port: int,
    tunnel: str | None,
    lan: str | None,
    ask: Callable[[], dict[str, Any]],
    show: Callable[[Any], None],
    say: Callable[[str], None],
) -> None:
    task = asyncio.current_task()
    assert task is not None
    if sys.platform != "win32":
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with AsyncExitStack() as stack:
        phone = stack.enter_context(PhoneAddress(state_dir, port).held())
        reached = _tunnel(tunnel, port, say) if tunnel is not None else _lan(lan or "", port, state_dir / "web")
        address, notice, ended = await stack.enter_async_context(reached)
        phone.write(address)
        found = await asyncio.to_thread(ask)
        if found["address"] != f"{address}/":
            raise ProcessFailed("The shared server runs an older version. Run `claude-code-mcp shared restart`.")
        show(found)
        say(f"{notice}\nA phone can open it until you press Ctrl+C here.")
        exit_ = await ended
        raise ProcessFailed(f"The tunnel has ended: {exit_.reason}")


@asynccontextmanager
async def _tunnel(
    name: str, port: int, say: Callable[[str], None]
) -> "AsyncIterator[tuple[str, str, asyncio.Future[Any]]]":
    async with open_tunnel(name, f"http://127.0.0.1:{port}", say) as (address, ended):
        yield address, TUNNELS[name].notice, ended


@asynccontextmanager
async def _lan(wanted: str, port: int, directory: Path) -> "AsyncIterator[tuple[str, str, asyncio.Future[Any]]]":
    host = lan_address(wanted)
    pem, fingerprint = await asyncio.to_thread(certificate, directory, host)
    async with serve_lan(host, port, pem) as address:
        yield address, _LAN_NOTICE.format(fingerprint=fingerprint), asyncio.get_running_loop().create_future()
