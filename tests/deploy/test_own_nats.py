"""A fleet on the operator's own NATS, by the lines of the manifests and with the permissions that the page names."""

import base64
import hashlib
import json
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("nats", reason="the extra `fleet` is not installed")

import nkeys  # type: ignore[import-untyped]

from claude_code_mcp.fleet.engine import LARGEST_MESSAGE, executable
from claude_code_mcp.fleet.tickets import machine_id_of
from tests.support.ports import free_port

from .deployment import ROOT, workloads
from .processes import environment, output_of, running

NO_LIMITS = {"subs": -1, "data": -1, "payload": -1}
ACCOUNT_LIMITS = {**NO_LIMITS, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
JETSTREAM_LIMITS = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}


class Key(NamedTuple):
    seed: str
    public: str


def new_key(prefix: int, number: int) -> Key:
    seed = bytes(nkeys.encode_seed(hashlib.sha256(bytes([prefix, number])).digest(), prefix))
    return Key(seed.decode(), bytes(nkeys.from_seed(bytearray(seed)).public_key).decode())


def signed(issuer: Key, subject: str, name: str, claims: dict[str, Any]) -> str:
    """A token as `nsc` makes it for an operator, an account or a user."""
    content = {"iat": int(time.time()), "iss": issuer.public, "name": name, "sub": subject, "jti": name}
    parts = ({"typ": "JWT", "alg": "ed25519-nkey"}, {**content, "nats": {"version": 2, **claims}})
    text = ".".join(_encoded(json.dumps(part).encode()) for part in parts)
    signature = bytes(nkeys.from_seed(bytearray(issuer.seed.encode())).sign(text.encode()))
    return f"{text}.{_encoded(signature)}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class OwnServer:
    """A NATS server with an operator, whose users have credentials; in the clear, since it is on loopback."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._account = new_key(nkeys.PREFIX_BYTE_ACCOUNT, 1)
        self.port = free_port()

    def configuration(self) -> Path:
        operator, system = new_key(nkeys.PREFIX_BYTE_OPERATOR, 0), new_key(nkeys.PREFIX_BYTE_ACCOUNT, 0)
        system_claims = {"type": "account", "limits": ACCOUNT_LIMITS}
        claims = {"type": "account", "limits": {**ACCOUNT_LIMITS, **JETSTREAM_LIMITS}}
        file = self._directory / "nats.conf"
        values = {
            "listen": f"127.0.0.1:{self.port}",
            "max_payload": LARGEST_MESSAGE,
            "jetstream": {"store_dir": str(self._directory / "jetstream"), "sync_interval": "always"},
            "operator": signed(operator, operator.public, "operator", {"type": "operator"}),
            "system_account": system.public,
            "resolver": "MEMORY",
            "resolver_preload": {
                system.public: signed(operator, system.public, "system", system_claims),
                self._account.public: signed(operator, self._account.public, "fleet", claims),
            },
        }
        file.write_text(json.dumps(values))
        return file

    def credentials(self, name: str, number: int, permissions: dict[str, Any] | None = None) -> Path:
        """A user's file, with permissions in which ID stands for the id of its machine; None: all of them."""
        user = new_key(nkeys.PREFIX_BYTE_USER, number)
        allowed = json.loads(json.dumps(permissions or {}).replace("ID", machine_id_of(user.public)))
        token = signed(self._account, user.public, name, {"type": "user", **NO_LIMITS, **allowed})
        file = self._directory / f"{name}.creds"
        file.write_text(
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        )
        file.chmod(0o600)
        return file


def permissions_on_the_page() -> dict[str, Any]:
    page = (ROOT / "docs" / "fleet.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^(publish|subscribe) +(.*)$", page, re.MULTILINE))
    assert re.search(r"^allow_responses +1, within a minute$", page, re.MULTILINE)
    return {
        "pub": {"allow": listed["publish"].split()},
        "sub": {"allow": listed["subscribe"].split()},
        "resp": {"max": 1, "ttl": 60 * 10**9},
    }


def test_gateway_and_machine_find_each_other_with_credentials(tmp_path: Path) -> None:
    server = OwnServer(tmp_path)
    users = {
        "claude-code-mcp-gateway": server.credentials("gateway", 0),
        "claude-code-mcp-runner": server.credentials("runner", 1, permissions_on_the_page()),
    }
    lines = {str(each).removeprefix("fleet-nats/"): each.main["args"] for each in workloads() if "nats/" in str(each)}
    url, http = f"nats://127.0.0.1:{server.port}", f"127.0.0.1:{free_port()}"

    def command(name: str) -> list[str]:
        here = {"/credentials/nats.creds": str(users[name]), "0.0.0.0:8765": http, "$(POD_NAME)": f"{name}-0"}
        words = [url if word.startswith("tls://") else here.get(word, word) for word in lines[name]]
        return ["claude-code-mcp", *words]

    def variables(name: str) -> dict[str, str]:
        (tmp_path / name).mkdir(exist_ok=True)
        return environment(tmp_path / name, tmp_path / name / "state")

    with (
        running(
            [executable(), "-c", str(server.configuration())],
            {},
            tmp_path / "nats.log",
            "Server is ready",
            exit_codes=(0, 1),  # it tells of the signal
        ),
        running(
            command("claude-code-mcp-gateway"),
            variables("claude-code-mcp-gateway"),
            tmp_path / "gateway.log",
            f"Clients with a token: http://{http}/mcp",
        ),
        running(
            command("claude-code-mcp-runner"),
            variables("claude-code-mcp-runner"),
            tmp_path / "runner.log",
            "is a machine of the fleet",
        ),
    ):
        credentials = str(users["claude-code-mcp-gateway"])
        status = ["claude-code-mcp", "fleet", "status", "--json", "--nats", url, "--creds", credentials]
        machines = json.loads(output_of(status, variables("claude-code-mcp-gateway")))
    assert {machine["capacity"] for machine in machines if not machine["gone"]} == {1, 6}
    assert "claude-code-mcp-runner-0" in {machine["name"] for machine in machines}
