"""`web --tunnel`: a tunnel program that gives the console an address with HTTPS.

The program runs as a child of the command and ends with it, also if the command is killed.
"""

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ...core.errors import InvalidArgument, ProcessFailed
from ...core.model.text import visible
from ...core.processes.child import ChildProcess, Exit
from ...core.processes.environment import child_environment

_START_SECONDS = 90.0
"""How long a program may take to print its address. The person may have to allow it in a browser first."""
_STOP_SECONDS = 5.0
_POLL_SECONDS = 0.1
_MAX_OUTPUT = 64 << 10


@dataclass(frozen=True, slots=True)
class Tunnel:
    """A tunnel program: how it is started, and the pattern of its address."""

    program: str
    arguments: Callable[[str], tuple[str, ...]]
    address: re.Pattern[str]
    install: str
    notice: str
    """Who can reach the console through it."""


TUNNELS = {
    "tailscale": Tunnel(
        "tailscale",
        lambda origin: ("serve", origin),
        re.compile(r"https://[a-z0-9.-]+\.ts\.net(?::\d+)?(?=[/\s]|$)"),
        "https://tailscale.com/download",
        "Devices of your tailnet can reach the console. The phone needs the Tailscale app.",
    ),
    "cloudflared": Tunnel(
        "cloudflared",
        lambda origin: ("tunnel", "--no-autoupdate", "--url", origin),
        # The program also prints the address of the service from which it requests a tunnel.
        re.compile(r"https://(?!api\.)[a-z0-9-]+\.trycloudflare\.com(?=[/\s]|$)"),
        "https://developers.cloudflare.com/cloudflare-one/connections/connect-networks/downloads/",
        "Anyone who knows this address can reach the sign-in page, but only your link signs in.",
    ),
}


class _Output:
    """The listener of the program: stores its output on stdout."""

    def __init__(self) -> None:
        self.text = ""

    def output_received(self, data: bytes) -> None:
        self.text = (self.text + data.decode("utf-8", "replace"))[-_MAX_OUTPUT:]

    def output_ended(self) -> None: ...

    def input_closed(self) -> None: ...

    def child_ended(self, exit_: Exit) -> None: ...


@asynccontextmanager
async def open_tunnel(
    name: str, origin: str, say: Callable[[str], None]
) -> AsyncIterator[tuple[str, "asyncio.Future[Exit]"]]:
    """Starts the program and yields its address and the future that ends with the program.

    The program's output before the address goes to `say`: it may ask for a sign-in. Raises InvalidArgument if the
    program is not installed, and ProcessFailed if it ends or prints no address in time.
    """
    tunnel = TUNNELS[name]
    executable = shutil.which(tunnel.program)
    if executable is None:
        raise InvalidArgument(f"{tunnel.program} is not on PATH. Install it: {tunnel.install}")
    output = _Output()
    child = ChildProcess(output, tunnel.program)
    try:
        await child.start([executable, *tunnel.arguments(origin)], cwd=None, environment=child_environment(os.environ))
    except OSError as error:
        raise ProcessFailed(f"{tunnel.program} cannot be started: {error}.") from None
    try:
        yield await _address(tunnel, child, output, say), child.exited
    finally:
        await child.stop(_STOP_SECONDS)


async def _address(tunnel: Tunnel, child: ChildProcess, output: _Output, say: Callable[[str], None]) -> str:
    shown = 0
    deadline = asyncio.get_running_loop().time() + _START_SECONDS
    while True:
        # Read before the text, which then includes all output of an ended program.
        ended = child.exited.done()
        text = f"{output.text}\n{child.stderr}"
        if (found := tunnel.address.search(text)) is not None:
            return found[0]
        if ended:
            raise ProcessFailed(f"No tunnel: {visible(child.exited.result().reason)}")
        if asyncio.get_running_loop().time() > deadline:
            raise ProcessFailed(f"No tunnel: {tunnel.program} printed no address within {_START_SECONDS:.0f} seconds.")
        complete = text[: text.rfind("\n") + 1].strip()
        if len(complete) > shown:
            say(visible(complete[shown:]).strip())
            shown = len(complete)
        await asyncio.sleep(_POLL_SECONDS)
