"""`web --tunnel` and `web --lan`: a phone opens the console of the shared server while the command runs."""

import asyncio
import contextlib
import datetime
import ipaddress
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from cryptography import x509

from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.plugins.console import lan
from claude_code_mcp.plugins.console.phone_address import PhoneAddress, is_public
from claude_code_mcp.plugins.console.tunnel import TUNNELS
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from tests.conftest import RUN
from tests.support import warm_commands
from tests.support.ports import free_port
from tests.support.program import OURS, Program, started
from tests.support.waiting import until

from .console_client import Browser

OUTPUT = {
    "tailscale": """\
echo "To enable HTTPS, visit: https://login.tailscale.com/f/serve?node=abc" >&2
echo "Available within your tailnet:"
echo
echo "https://machine.tail0.ts.net/"
echo "|-- proxy $2"
""",
    "cloudflared": """\
echo "INF Requesting new quick Tunnel on trycloudflare.com..." >&2
echo "INF POST https://api.trycloudflare.com/tunnel" >&2
echo "INF |  https://some-random-words.trycloudflare.com  |" >&2
""",
}
PUBLIC = {
    "tailscale": "https://machine.tail0.ts.net",
    "cloudflared": "https://some-random-words.trycloudflare.com",
}


@dataclass
class Machine:
    """A user with a shared server, and the tunnel programs on their PATH."""

    sandbox: Sandbox
    environment: dict[str, str]
    programs: Path

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return warm_commands.run(arguments, self.environment, self.sandbox.project)

    def link(self) -> str:
        given = self.run("web", "--json")
        assert given.returncode == 0, given.stderr
        return str(json.loads(given.stdout)["url"])

    @contextmanager
    def web(self, *arguments: str) -> Iterator[Program]:
        with started([OURS, "web", *arguments], self.environment, self.sandbox.project) as program:
            program.until_said("The link works once")
            program.until_said("press Ctrl+C")
            yield program

    def install(self, name: str, output: str, then: str = "exec sleep 1000") -> None:
        """A tunnel program with this output, which notes how it is started."""
        notes = self.programs / f"{name}.notes"
        script = f'#!/bin/sh\necho "$$ $*" > {notes}\nenv > {notes}.env\n{output}\n{then}\n'
        (self.programs / name).write_text(script)
        (self.programs / name).chmod(0o755)

    def started_with(self, name: str) -> tuple[int, str]:
        """The process of a tunnel program and its arguments."""
        process, _, arguments = (self.programs / f"{name}.notes").read_text().strip().partition(" ")
        return int(process), arguments


@pytest.fixture
def machine(tmp_path: Path, model: ScriptedModelThread) -> Iterator[Machine]:
    sandbox = Sandbox(tmp_path, model.url)
    programs = tmp_path / "bin"
    programs.mkdir()
    own = {"CLAUDE_CODE_MCP_RUNTIME_DIR": str(tmp_path / "run"), warm_commands.WARM_SERVERS: "1"}
    environment = sandbox.environment(**{RUN: os.environ[RUN], **own})
    environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    made = Machine(sandbox, environment, programs)
    yield made
    made.run("shared", "stop")


def phone(local: str, public: str) -> Browser:
    """A phone behind a tunnel: its requests arrive on loopback with the name that the phone has opened."""
    name = public.removeprefix("https://")
    return Browser(local, headers={"Host": name, "Origin": public})


def local_address(link: str) -> str:
    return re.match(r"http://127\.0\.0\.1:\d+", link)[0]  # type: ignore[index]


def ticket_in(text: str) -> str:
    return text.partition("#ticket=")[2].split()[0]


@pytest.mark.parametrize("name", sorted(OUTPUT))
def test_a_phone_signs_in_through_a_tunnel_while_the_command_runs(name: str, machine: Machine) -> None:
    machine.install(name, OUTPUT[name])
    public, local = PUBLIC[name], local_address(machine.link())
    machine.environment["CLAUDE_CODE_MCP_TOKEN"] = "of-the-user"
    with machine.web("--tunnel", name) as command:
        assert f"{public}/#ticket=" in command.output
        assert "█" in command.output
        assert TUNNELS[name].notice in command.errors
        process, arguments = machine.started_with(name)
        assert local in arguments
        assert "of-the-user" not in (machine.programs / f"{name}.notes.env").read_text()
        browser = phone(local, public)
        signed_in = browser.sign_in(ticket=ticket_in(command.output))
        assert signed_in.json["principal"] == "local"
        assert "Secure" in signed_in.headers["set-cookie"]
        assert browser.get("/api/me").json["principal"] == "local"
        assert machine.link().startswith(f"{public}/#ticket=")  # one more link, from another terminal
        second = machine.run("web", "--lan", "10.0.0.1")
        assert second.returncode == 2
        assert "already served at" in second.stderr
        assert psutil.pid_exists(process)
    until(lambda: not psutil.pid_exists(process), "the tunnel goes on")
    assert browser.get("/api/me").status == 421
    assert machine.link().startswith(f"{local}/#ticket=")


def test_a_server_that_restarts_meanwhile_still_serves_the_phone(machine: Machine) -> None:
    machine.install("tailscale", OUTPUT["tailscale"])
    local = local_address(machine.link())
    with machine.web("--tunnel", "tailscale"):
        assert machine.run("shared", "restart").returncode == 0
        browser = phone(local, PUBLIC["tailscale"])
        assert browser.sign_in(ticket=ticket_in(machine.link())).json["principal"] == "local"


def test_the_address_of_a_killed_command_no_longer_counts(machine: Machine) -> None:
    machine.install("tailscale", OUTPUT["tailscale"])
    local = local_address(machine.link())
    with started(
        [OURS, "web", "--tunnel", "tailscale"], machine.environment, machine.sandbox.project, exit_codes=None
    ) as command:
        command.until_said("press Ctrl+C")
        process, _ = machine.started_with("tailscale")
        command.process.send_signal(signal.SIGKILL)
        until(lambda: not psutil.pid_exists(process), "the tunnel goes on")
    assert machine.link().startswith(f"{local}/#ticket=")
    assert phone(local, PUBLIC["tailscale"]).get("/").status == 421


def test_a_tunnel_that_fails_says_why(machine: Machine) -> None:
    machine.install("cloudflared", 'echo "ERR no route to the edge" >&2', then="exit 3")
    failed = machine.run("web", "--tunnel", "cloudflared")
    assert failed.returncode == 1
    assert "no route to the edge" in failed.stderr
    assert "#ticket=" not in failed.stdout


def test_a_tunnel_that_is_not_installed_is_named_with_its_address(machine: Machine) -> None:
    machine.environment["PATH"] = str(machine.programs)
    failed = machine.run("web", "--tunnel", "tailscale")
    assert failed.returncode == 2
    assert TUNNELS["tailscale"].install in failed.stderr


def test_without_a_tunnel_the_command_says_what_a_phone_needs(machine: Machine) -> None:
    given = machine.run("web")
    assert "█" not in given.stdout  # nobody can use it
    for way in ("--lan", "--tunnel tailscale", "--tunnel cloudflared"):
        assert f"claude-code-mcp web {way}" in given.stdout


# -- the local network ------------------------------------------------------------------------------------------------

PHONE = """
import http.client, json, ssl, sys
from urllib.parse import urlsplit
address, ticket, certificate = sys.argv[1:]
parts = urlsplit(address)
connection = http.client.HTTPSConnection(
    parts.hostname, parts.port, timeout=60, context=ssl.create_default_context(cafile=certificate))
connection.request("GET", "/")
page = connection.getresponse()
print(page.status, b"<!doctype html>" in page.read()[:100].lower())
headers = {"Origin": address, "Content-Type": "application/json", "Sec-Fetch-Site": "same-origin"}
connection.request("POST", "/api/sign-in", json.dumps({"ticket": ticket}), headers)
answer = connection.getresponse()
print(answer.status, json.loads(answer.read())["principal"])
"""
MACHINE_ADDRESS, PHONE_ADDRESS = "10.219.77.1", "10.219.77.2"


@pytest.fixture
def phone_namespace() -> Iterator[str]:
    """A second network namespace with a cable to this one."""
    if sys.platform != "linux" or shutil.which("ip") is None:
        pytest.skip("there is no `ip`, which makes network namespaces")
    name = f"phone{os.getpid()}"
    here, there = f"vh{os.getpid()}", f"vp{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no network namespace can be made here: {made.stderr.strip()}")
    try:
        inside = ("ip", "-n", name)
        for command in (
            ("ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", name),
            ("ip", "address", "add", f"{MACHINE_ADDRESS}/30", "dev", here),
            ("ip", "link", "set", here, "up"),
            (*inside, "address", "add", f"{PHONE_ADDRESS}/30", "dev", there),
            (*inside, "link", "set", there, "up"),
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"`{' '.join(command)}` fails here: {done.stderr.strip()}")
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)  # and the cable with it


def test_a_phone_in_the_local_network_signs_in_over_tls(machine: Machine, phone_namespace: str, tmp_path: Path) -> None:
    certificate = tmp_path / "phone.pem"
    with machine.web("--lan", MACHINE_ADDRESS) as command:
        address = command.output.partition("https://")[2].partition("/")[0]
        assert address.startswith(f"{MACHINE_ADDRESS}:")
        (file,) = machine.sandbox.home.rglob(f"lan-{MACHINE_ADDRESS}.pem")
        kept = file.read_text()
        certificate.write_text(kept[kept.index("-----BEGIN CERTIFICATE") :])
        visited = subprocess.run(
            [
                *("ip", "netns", "exec", phone_namespace, sys.executable, "-c", PHONE),
                *(f"https://{address}", ticket_in(command.output), str(certificate)),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert visited.stdout.splitlines() == ["200 True", "200 local"], visited.stderr
        assert lan.certificate(file.parent, MACHINE_ADDRESS)[1] in command.errors
    assert machine.link().startswith("http://127.0.0.1:")


def test_the_certificate_is_for_the_address_and_is_kept_until_it_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, fingerprint = lan.certificate(tmp_path, "10.1.2.3")
    assert file.stat().st_mode & 0o077 == 0
    made = x509.load_pem_x509_certificate(file.read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("10.1.2.3")]
    assert made.not_valid_after_utc - made.not_valid_before_utc <= datetime.timedelta(days=398)
    assert lan.certificate(tmp_path, "10.1.2.3") == (file, fingerprint)
    monkeypatch.setattr(lan, "_RENEW_DAYS", 398)
    assert lan.certificate(tmp_path, "10.1.2.3")[1] != fingerprint
    file.write_text("damaged")
    monkeypatch.undo()
    assert lan.certificate(tmp_path, "10.1.2.3")[1] != fingerprint


@pytest.mark.parametrize("wanted", ["127.0.0.1", "0.0.0.0", "8.8.8.8", "my-machine"])
def test_only_an_address_of_the_local_network_is_served(wanted: str) -> None:
    with pytest.raises(InvalidArgument):
        lan.lan_address(wanted)


@pytest.mark.parametrize(
    ("address", "accepted"),
    [
        ("https://machine.tail0.ts.net", True),
        ("https://192.168.1.4:8443", True),
        ("https://[fd00::1]:8443", True),
        ("http://machine.tail0.ts.net", False),
        ("https://127.0.0.1:8443", False),
        ("https://user@machine.tail0.ts.net/path", False),
        ("https://[", False),
        ("", False),
    ],
)
def test_only_the_https_origin_of_another_name_is_accepted(address: str, accepted: bool, tmp_path: Path) -> None:
    assert is_public(address) is accepted
    with PhoneAddress(tmp_path, 1).held() as held:
        held.write(address)
        assert PhoneAddress(tmp_path, 1).read() == (address if accepted else None)
    assert PhoneAddress(tmp_path, 1).read() is None


async def test_no_connection_outlives_the_command(tmp_path: Path) -> None:
    file, _ = lan.certificate(tmp_path, "127.0.0.1")
    async with lan.serve_lan("127.0.0.1", free_port(), file) as url:
        begun = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
        begun.setblocking(False)
        await asyncio.sleep(0.1)  # accepted, without a byte
    trusting = ssl.create_default_context(cafile=str(file))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection(sock=begun, ssl=trusting, server_hostname="127.0.0.1")
    begun.close()


async def test_connections_count_before_their_handshake(tmp_path: Path) -> None:
    file, _ = lan.certificate(tmp_path, "127.0.0.1")
    async with contextlib.AsyncExitStack() as stack, lan.serve_lan("127.0.0.1", free_port(), file) as url:
        reads = []
        for _ in range(lan._MAX_CONNECTIONS_OF_ONE_ADDRESS + 1):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            stack.callback(writer.close)
            reads.append(asyncio.ensure_future(reader.read()))
        await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
        assert [read.done() for read in reads] == [*[False] * lan._MAX_CONNECTIONS_OF_ONE_ADDRESS, True]
        assert len(reads) == 33
    await asyncio.gather(*reads, return_exceptions=True)
