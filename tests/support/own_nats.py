"""NATS servers as an operator runs them: one or three on loopback, whose users have files of credentials."""

import base64
import hashlib
import json
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import nkeys  # type: ignore[import-untyped]

from claude_code_mcp.plugins.fleet.nats_server import MAX_MESSAGE, executable
from claude_code_mcp.plugins.fleet.tickets import machine_id_of

from .ports import free_port
from .waiting import HANG_SECONDS, until

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

    def __init__(self, directory: Path, number: int = 0, routes: Sequence[int] = ()) -> None:
        """`routes` are the ports of a cluster's servers among themselves; that of this one is `routes[number]`."""
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self._number, self._routes = number, routes
        self._account = new_key(nkeys.PREFIX_BYTE_ACCOUNT, 1)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self._monitor_port = free_port()

    @property
    def monitor_url(self) -> str:
        """Where the server says what it has counted."""
        return f"http://127.0.0.1:{self._monitor_port}"

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def configuration(self) -> Path:
        operator, system = new_key(nkeys.PREFIX_BYTE_OPERATOR, 0), new_key(nkeys.PREFIX_BYTE_ACCOUNT, 0)
        system_claims = {"type": "account", "limits": ACCOUNT_LIMITS}
        claims = {"type": "account", "limits": {**ACCOUNT_LIMITS, **JETSTREAM_LIMITS}}
        file = self._directory / "nats.conf"
        values: dict[str, Any] = {
            "server_name": f"nats-{self._number}",
            "listen": f"127.0.0.1:{self.port}",
            "http": f"127.0.0.1:{self._monitor_port}",
            "max_payload": MAX_MESSAGE,
            # A client that is frozen must not be asked for long: a keeper may be among them.
            "ping_interval": "2s",
            "ping_max": 2,
            "jetstream": {"store_dir": str(self._directory / "jetstream"), "sync_interval": "always"},
            "operator": signed(operator, operator.public, "operator", {"type": "operator"}),
            "system_account": system.public,
            "resolver": "MEMORY",
            "resolver_preload": {
                system.public: signed(operator, system.public, "system", system_claims),
                self._account.public: signed(operator, self._account.public, "fleet", claims),
            },
        }
        if self._routes:
            values["cluster"] = {
                "name": "fleet",
                # Clients are told of no other server: each may have a line of its own to every one of them.
                "no_advertise": True,
                "listen": f"127.0.0.1:{self._routes[self._number]}",
                "routes": [f"nats://127.0.0.1:{port}" for port in self._routes],
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

    # -- as a process -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts it; returns when it says that it listens. In a cluster it may have no leader yet."""
        log = self._directory / "nats.log"
        with log.open("w") as output:
            self._process = process = subprocess.Popen(
                [executable(), "-c", str(self.configuration())], env={}, stdin=subprocess.DEVNULL, stderr=output
            )
        until(lambda: "Server is ready" in log.read_text() or process.poll() is not None)
        assert process.poll() is None, log.read_text()

    def kill(self, sent: signal.Signals = signal.SIGKILL) -> None:
        """Ends it at once, if it runs."""
        if self._process is not None:
            self._process.send_signal(sent)
            self._process.wait(HANG_SECONDS)
            self._process = None


def cluster(directory: Path, size: int) -> list[OwnServer]:
    """Servers of one cluster, or the only one; none of them is started."""
    directory.mkdir(exist_ok=True)
    routes = [free_port() for _ in range(size)] if size > 1 else []
    return [OwnServer(directory / f"nats-{number}", number, routes) for number in range(size)]
