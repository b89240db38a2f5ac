"""Sessions of the real CLI in a real sandbox whose network is a list of hosts: curl, git and Python in them reach these
hosts and no other, and use credentials that they never have."""

import asyncio
import contextlib
import functools
import http.server
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.model.events import AuditEvent, Event
from claude_code_mcp.core.model.network import CredentialRule, parse_credential
from claude_code_mcp.core.policy.policy import Policy, Profile
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from tests.conftest import StartService
from tests.plugins.sandbox.support import Certificates
from tests.support import local_http
from tests.support.bubblewrap import missing
from tests.support.repositories import git, repository

from .test_sandboxed_sessions import KEY, seen

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
SECRET = "the-operators-token-0123456789"


class Trail:
    """An observer that keeps what is audited."""

    def __init__(self) -> None:
        self.acts: list[AuditEvent] = []

    def event(self, session_id: str, owner: str, event: Event) -> None:
        pass

    def act(self, act: AuditEvent) -> None:
        self.acts.append(act)

    def of(self, kind: str) -> list[AuditEvent]:
        return [act for act in self.acts if str(act.kind) == kind]


class Site(http.server.SimpleHTTPRequestHandler):
    """Serves a directory, and remembers the headers of requests."""

    seen: "list[dict[str, str]]" = []  # noqa: RUF012 - replaced for each server

    def do_GET(self) -> None:
        self.seen.append(dict(self.headers.items()))
        super().do_GET()

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def site(directory: Path, context: Any = None) -> Iterator[tuple[int, list[dict[str, str]]]]:
    requests: list[dict[str, str]] = []
    handler = type("Handler", (Site,), {"seen": requests})
    with local_http.site(functools.partial(handler, directory=str(directory)), context) as url:
        yield int(url.rpartition(":")[2]), requests


def listed(sandbox: Sandbox, hosts: list[str], *credentials: CredentialRule) -> Policy:
    return Policy(
        Profile(
            isolation="sandbox",
            roots=(str(sandbox.project),),
            network=hosts,  # type: ignore[arg-type]  # as a file says it
            credentials=credentials,
        )
    )


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """A directory with a page and a repository that git reads over plain HTTP."""
    directory = tmp_path / "pages"
    directory.mkdir()
    (directory / "page.txt").write_text("the page\n")
    source = repository(tmp_path / "source")
    git(tmp_path, "clone", "-q", "--bare", str(source), str(directory / "repo.git"))
    git(directory / "repo.git", "update-server-info")
    return directory


def ways_out(port: int) -> list[str]:
    """Commands that try to reach a server that is not on the list, of which example.org is."""
    raw = f'printf "GET http://127.0.0.1:{port}/page.txt HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"'
    return [
        f"curl -sS -x '' http://127.0.0.1:{port}/",
        f"curl -sS http://localhost:{port}/",
        f"curl -sS -H 'Host: example.org' http://127.0.0.1:{port}/",
        f"bash -c 'exec 5<>/dev/tcp/127.0.0.1/{port}'",
        f"bash -c 'exec 5<>/dev/tcp/127.0.0.1/3128; {raw} >&5; cat <&5'",
        "python3 -c \"import socket; s=socket.socket(socket.AF_UNIX); s.connect('/run/network.sock')\"",
        "ls -l /run; ip link 2>/dev/null || cat /proc/net/dev",
        f"curl -sS --proxytunnel http://127.0.0.1:{port}/",
        f"curl -sS --connect-to ::127.0.0.1:{port} http://example.org/",
    ]


async def test_curl_git_and_python_reach_listed_hosts_and_no_other_whatever_they_try(
    start_service: StartService, sandbox: Sandbox, model: ScriptedModelThread, pages: Path
) -> None:
    trail = Trail()
    with site(pages) as (port, requests), site(pages) as (other, unlisted):
        service = await start_service(
            extra={"ANTHROPIC_API_KEY": KEY},
            policy=listed(sandbox, [f"127.0.0.1:{port}", "example.org"]),
            observers=[trail],
        )
        url, wrong = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{other}"
        python = "import urllib.request as u; print(u.urlopen('{}/page.txt').read())"
        said = await seen(
            service,
            sandbox,
            f"curl -sS {url}/page.txt; git clone -q {url}/repo.git copy && cat copy/a.txt; "
            f'python3 -c "{python.format(url)}"; echo --; curl -sS -i {wrong}/page.txt; '
            f'git clone -q {wrong}/repo.git wrong; python3 -c "{python.format(wrong)}"; '
            f"curl -sS --noproxy '*' {wrong}/page.txt; curl -sS https://example.com; "
            f"echo --; {'; '.join(ways_out(other))}; echo --; env; cat /proc/*/environ",
        )
    good, bad, tried, _ = said.split("--\n", 3)
    assert good.splitlines() == ["the page", "one", "b'the page\\n'"], said
    assert f"127.0.0.1:{other} is not a host that this session may reach" in bad
    assert f"network = ['127.0.0.1:{port}', 'example.org']" in bad
    assert "the page" not in bad + tried
    interfaces = [line.split(":")[0].strip() for line in tried.splitlines() if ": " in line and "packets" not in line]
    assert "eth0" not in interfaces
    assert unlisted == []
    assert len(requests) > 3
    assert KEY not in said
    refusals = trail.of("network_refused")
    assert {act.details["host"] for act in refusals} == {f"127.0.0.1:{other}", "example.com:443"}
    assert {act.who for act in refusals} == {"alice"}
    assert all(act.session_id for act in refusals)
    assert model.requests[-1].headers["x-api-key"] == KEY


async def test_a_session_uses_a_credential_that_it_never_has(
    start_service: StartService, sandbox: Sandbox, pages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates, trail = Certificates(tmp_path), Trail()
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.file))  # what the server itself trusts
    with site(pages, certificates.server("localhost")) as (port, requests):
        rule = parse_credential(f"localhost:{port}", "Authorization", "env:SITE_TOKEN")
        service = await start_service(
            extra={"SITE_TOKEN": SECRET}, policy=listed(sandbox, [f"localhost:{port}"], rule), observers=[trail]
        )
        url = f"https://localhost:{port}"
        python = f"import urllib.request as u; print(u.urlopen('{url}/page.txt').read())"
        said = await seen(
            service,
            sandbox,
            f"curl -sS -H 'Authorization: mine' {url}/page.txt; git clone -q {url}/repo.git copy && cat copy/a.txt; "
            f'python3 -c "{python}"; echo --; env; cat /proc/*/environ; cat $SSL_CERT_FILE | tail -40; '
            "grep -rs --devices=skip the-operators $HOME /tmp /run /etc $CLAUDE_CONFIG_DIR . | head",
        )
    assert said.partition("--\n")[0].splitlines() == ["the page", "one", "b'the page\\n'"], said
    assert {headers["Authorization"] for headers in requests} == {f"Bearer {SECRET}"}
    assert SECRET not in said
    used = trail.of("credential_used")
    assert used[0].details["host"] == f"localhost:{port}"
    assert used[0].details["source"] == "env:SITE_TOKEN"
    assert SECRET not in str(trail.acts)


@pytest.mark.soak
async def test_the_model_and_the_sessions_own_servers_are_reached_as_before(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service(policy=listed(sandbox, ["example.org"]))
    command = (
        "echo own > own.txt; python3 -m http.server 8123 --bind 127.0.0.1 >/dev/null 2>&1 & "
        "for i in $(seq 200); do curl -sS http://127.0.0.1:8123/own.txt 2>/dev/null && break; sleep 0.05; done; kill %1"
    )
    assert "own" in await seen(service, sandbox, command)


@pytest.mark.soak
async def test_nothing_is_left_when_the_session_has_ended(
    start_service: StartService, sandbox: Sandbox, pages: Path
) -> None:
    service = await start_service(policy=listed(sandbox, ["example.org"]))
    assert isinstance(service, Service)
    await seen(service, sandbox, "true")
    before = _listening()
    for session in service.sessions(principal="alice"):
        session.park()
    for _ in range(400):
        if _listening() < before:
            break
        await asyncio.sleep(0.05)
    assert _listening() < before


def _listening() -> int:
    """Descriptors of this process that are sockets."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return found


async def test_a_credential_that_is_not_there_stops_the_start(start_service: StartService, sandbox: Sandbox) -> None:
    rule = parse_credential("example.org", "Authorization", "env:NO_SUCH_VARIABLE")
    with pytest.raises(InvalidArgument, match="is not set"):
        await start_service(policy=listed(sandbox, ["example.org"], rule))
