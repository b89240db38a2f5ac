"""The embedded NATS server: its certificate, configuration, start and end.

Writes are synced before they are acknowledged (`sync_interval: always`): with the default, acknowledged writes can be
lost in a power cut. Clients trust only the fleet's own certificate authority, which is part of the ticket, and expect
the name `SERVER_NAME` at any address: an address behind NAT or a new one needs no new certificate.
"""

import asyncio
import contextlib
import datetime
import ipaddress
import json
import logging
import os
import shutil
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ...core.errors import ClaudeCodeError, InvalidArgument
from ...core.installation import extra_command
from ...core.private_files import private_directory, replace_file

log = logging.getLogger(__name__)

SERVER_NAME: Final = "fleet.claude-code-mcp.internal"
_LIFETIME = datetime.timedelta(days=3650)
_BACKDATED = datetime.timedelta(days=1)
"""A machine's clock may be behind the server's."""


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """The files that a TLS server needs, and what its clients need."""

    certificate: Path
    key: Path
    authority: str
    """The authority's certificate (PEM), which is not secret."""


def server_certificate(directory: Path) -> ServerCertificate:
    """The certificate of the server whose files are in `directory`, created with its authority if missing. The
    authority's key is discarded after signing, so it can sign no other certificate. Raises OSError."""
    private_directory(directory)
    files = ServerCertificate(directory / "server.pem", directory / "server-key.pem", "")
    authority = directory / "authority.pem"
    if not (authority.exists() and files.certificate.exists() and files.key.exists()):
        own, server, key = _made()
        replace_file(files.key, key)
        replace_file(files.certificate, server)
        replace_file(authority, own)  # last: with it everything is there
    return ServerCertificate(files.certificate, files.key, authority.read_text(encoding="ascii"))


def _made() -> tuple[bytes, bytes, bytes]:
    """Certificate of a new authority, certificate of the server, key of the server; each PEM."""
    authority_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "claude-code-mcp fleet")])
    own = (
        _builder(name, name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SERVER_NAME)])
    server = (
        _builder(subject, name, server_key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    key = server_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return own.public_bytes(pem), server.public_bytes(pem), key


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + _LIFETIME)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def client_context(authority: str) -> ssl.SSLContext:
    """For clients that trust only this authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=authority)
    return context


# -- the server -------------------------------------------------------------------------------------------------------


MAX_MESSAGE = 8 << 20
"""Maximum message size of the embedded server, in bytes."""
_STOP_SECONDS = 2.0
"""Seconds until a server that does not stop is killed. Nothing is lost, because its writes are synced."""
_LEFT_SECONDS = 10.0
_RELOAD_SECONDS = 10.0
_START_SECONDS = 60.0
MAX_RESTARTS: Final = 5
RESTART_WINDOW: Final = 600.0
"""Seconds within which a server may be restarted MAX_RESTARTS times."""
_RESTART_PAUSE = 0.5
"""Seconds before a restart, multiplied by the number of restarts within the window."""
_INHERITED = ("PATH", "HOME", "TMPDIR", "SYSTEMROOT", "TEMP", "TMP")
"""The variables that the server inherits; it needs no secret."""
_MAX_LINE = 64 << 10


class EngineUnavailable(ClaudeCodeError):
    """The NATS server is not installed or did not start."""


def executable() -> str:
    """The server's program: the one next to this interpreter, otherwise the first on PATH."""
    beside = Path(sys.executable).parent / ("nats-server.exe" if sys.platform == "win32" else "nats-server")
    found = str(beside) if beside.is_file() else shutil.which("nats-server")
    if found is None:
        raise EngineUnavailable(f"nats-server is not installed. Install it with: {extra_command('fleet')}")
    return found


User = dict[str, Any]
"""A user in the server's configuration: an nkey and its permissions."""


@dataclass(frozen=True, slots=True)
class ServerConfiguration:
    """The embedded server's configuration. Anything beyond loopback needs a certificate and users."""

    directory: Path
    """The directory for its data and configuration."""
    host: str = "127.0.0.1"
    port: int = -1
    """-1: any free port."""
    certificate: ServerCertificate | None = None
    users: Sequence[User] | None = None
    """Users and their permissions; None: everyone may do everything."""

    def text(self) -> str:
        """The configuration file. JSON is part of the server's own format and quotes anything in a path. Raises
        InvalidArgument for a server beyond loopback without encryption or users."""
        if not _is_loopback(self.host) and (self.certificate is None or self.users is None):
            raise InvalidArgument(f"On {self.host} the fleet's server needs TLS and keys.", field="host")
        values: dict[str, Any] = {
            "listen": f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}",
            "max_payload": MAX_MESSAGE,
            "jetstream": {"store_dir": str(self.directory / "jetstream"), "sync_interval": "always"},
        }
        if self.users is not None:
            values["authorization"] = {"users": [*self.users], "timeout": 5}
        if self.certificate is not None:
            values["tls"] = {
                "cert_file": str(self.certificate.certificate),
                "key_file": str(self.certificate.key),
                "handshake_first": True,  # the greeting is encrypted too
                "min_version": "1.3",
                "timeout": 5,
            }
        return json.dumps(values, indent=1)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Running:
    """A server that is restarted with its data, at the same address, if it exits unexpectedly."""

    def __init__(self, configuration: ServerConfiguration, file: Path) -> None:
        self.url = ""
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """EngineUnavailable once the server has exited too often."""
        self._configuration = configuration
        self._file = file
        self._changing = anyio.Lock()
        """Held while the server starts or reloads, so that the two never overlap."""
        self._output = ServerOutput()
        self._transport: asyncio.SubprocessTransport | None = None

    @property
    def pid(self) -> int:
        """The process id, which changes with each start."""
        return self._process.get_pid()

    @property
    def _process(self) -> asyncio.SubprocessTransport:
        if self._transport is None:
            raise EngineUnavailable("nats-server was not started.")
        return self._transport

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.url.rsplit(":", 1)[1])

    async def reload(self, users: Sequence[User]) -> None:
        """Gives the server new users. The connections of removed users are closed on return. Raises EngineUnavailable
        if the server refuses; then it continues unchanged."""
        if sys.platform == "win32":
            raise EngineUnavailable("On Windows, key changes take effect only when `fleet up` is restarted.")
        async with self._changing:
            self._configuration = replace(self._configuration, users=users)
            await anyio.to_thread.run_sync(_write, self._configuration)
            if self._output.ended.done():
                raise EngineUnavailable("nats-server exited; it reads the new keys when it is restarted.")
            reloaded = self._output.expect_reload()
            self._process.send_signal(signal.SIGHUP)
            with anyio.fail_after(_RELOAD_SECONDS):
                await reloaded

    async def start(self) -> None:
        """Returns when the server accepts connections. Raises EngineUnavailable."""
        self._transport, self._output = await asyncio.get_running_loop().subprocess_exec(
            ServerOutput,
            executable(),
            "-c",
            str(self._file),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            env={name: os.environ[name] for name in _INHERITED if name in os.environ},
            start_new_session=sys.platform != "win32",  # Ctrl-C must not reach it: we stop it in order
        )
        try:
            async with asyncio.timeout(_START_SECONDS):
                address = await asyncio.shield(self._output.ready)
        except TimeoutError:
            self._output.ready.cancel()
            raise EngineUnavailable(f"nats-server did not start within {_START_SECONDS:g} seconds.") from None
        scheme = "nats" if self._configuration.certificate is None else "tls"
        host = self._configuration.host
        host = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104 - compared
        port = int(address.rsplit(":", 1)[1])
        self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        # A restart listens where machines and clients expect it.
        self._configuration = replace(self._configuration, port=port)

    async def watch(self) -> None:
        """Restart the server whenever it ends. Set `failed` when it has ended too often within RESTART_WINDOW, or when
        it can no longer be watched."""
        try:
            await self._keep_running()
        except Exception as problem:
            log.exception("nats-server is no longer monitored")
            self.failed.set_exception(EngineUnavailable(f"nats-server cannot be restarted: {problem}"))

    async def _keep_running(self) -> None:
        loop = asyncio.get_running_loop()
        ends: list[float] = []
        while True:
            await asyncio.shield(self._output.ended)
            ends = [each for each in ends if each > loop.time() - RESTART_WINDOW]
            how = f"nats-server (pid {self.pid}) exited with code {self._process.get_returncode()}"
            self._process.close()
            if len(ends) >= MAX_RESTARTS:
                log.error("%s, and was restarted %d times; stopping the fleet", how, MAX_RESTARTS)
                self.failed.set_exception(
                    EngineUnavailable(
                        f"nats-server exited {MAX_RESTARTS + 1} times within {RESTART_WINDOW / 60:g} minutes. Its last "
                        f"messages are in the log; its data is in {self._configuration.directory}."
                    )
                )
                return
            await asyncio.sleep(_RESTART_PAUSE * len(ends))
            ends.append(loop.time())
            log.error("%s; restart %d of at most %d", how, len(ends), MAX_RESTARTS)
            async with self._changing:
                try:
                    await anyio.to_thread.run_sync(_write, self._configuration)
                    await self.start()
                    log.warning("nats-server is running again with its data (pid %d)", self.pid)
                except (EngineUnavailable, OSError) as problem:
                    log.error("nats-server could not be restarted: %s", problem)
                    await self.stop()

    async def stop(self) -> None:
        """Stops the server; kills it if it does not exit in time."""
        if self._transport is None:
            return
        if self._transport.get_returncode() is None:
            self._transport.terminate()
            done, _ = await asyncio.wait([self._output.ended], timeout=_STOP_SECONDS)
            if not done:
                self._transport.kill()
                await self._output.ended
        self._transport.close()


def _write(configuration: ServerConfiguration) -> Path:
    private_directory(configuration.directory)
    file = configuration.directory / "nats.conf"
    replace_file(file, configuration.text().encode())
    return file


@contextlib.asynccontextmanager
async def running(directory: Path, port: int = -1) -> AsyncIterator[Running]:
    """Runs a server on loopback that admits everyone, for tests and trials."""
    async with running_server(ServerConfiguration(directory, port=port)) as server:
        yield server


@contextlib.asynccontextmanager
async def running_server(configuration: ServerConfiguration) -> AsyncIterator[Running]:
    """Runs a server until the end of the block, which begins when it accepts connections. Restarts it if it exits.
    Raises EngineUnavailable. Only one caller may run a server in this directory."""
    file = await anyio.to_thread.run_sync(_write, configuration)
    # Before the start: two servers on one store would each let a machine hold the same session.
    await anyio.to_thread.run_sync(_end_left_behind, file)
    server = Running(configuration, file)
    watching = None
    try:
        await server.start()
        watching = asyncio.ensure_future(server.watch())
        yield server
    finally:
        # Shielded: a server that is left behind would keep the data from the next one.
        with anyio.CancelScope(shield=True):
            if watching is not None:
                watching.cancel()
                await asyncio.wait([watching])
            await server.stop()
            server.failed.cancel()


def _end_left_behind(file: Path) -> None:
    """Stops a server left by a killed `fleet up` and waits for it. Blocks."""
    left, user = [], psutil.Process().username()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            program, *arguments = process.cmdline() or [""]
            # Identified by all of its arguments, whichever installation started it: an editor may have the file open
            # too.
            named = os.path.basename(program).startswith("nats-server")
            if named and arguments == ["-c", str(file)] and process.username() == user:
                process.terminate()
                left.append(process)
    if left:
        log.warning("ended %d server(s) that a killed `fleet up` had left behind", len(left))
    _, alive = psutil.wait_procs(left, _LEFT_SECONDS)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, _LEFT_SECONDS)


class ServerOutput(asyncio.SubprocessProtocol):
    """Reads the server's log while it runs, because a full pipe would block it."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[str] = loop.create_future()
        """The address, once connections are accepted; EngineUnavailable with the last line if it exits first."""
        self.ended: asyncio.Future[None] = loop.create_future()
        self._rest = b""
        self._url = ""
        self._reloaded: asyncio.Future[None] | None = None

    def expect_reload(self) -> "asyncio.Future[None]":
        """Done when the server has reloaded its configuration. Raises EngineUnavailable if that fails."""
        self._reloaded = asyncio.get_running_loop().create_future()
        return self._reloaded

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-_MAX_LINE:]
        for line in lines:
            if b"Listening for client connections on " in line:
                self._url = "nats://" + line.rsplit(b" ", 1)[1].decode().strip()
            if b"Server is ready" in line and not self.ready.done():
                self.ready.set_result(self._url)
            if self._reloaded is not None and not self._reloaded.done():
                if b"Reloaded server configuration" in line:
                    self._reloaded.set_result(None)
                elif b"Failed to reload server configuration" in line:
                    reason = line.decode(errors="replace").strip()
                    self._reloaded.set_exception(EngineUnavailable(f"nats-server keeps its old keys: {reason}"))
            if b"[ERR]" in line or b"[FTL]" in line:
                log.warning("nats-server: %s", line.decode(errors="replace").strip())

    def process_exited(self) -> None:
        if not self.ready.done():
            last = self._rest.decode(errors="replace").strip()
            self.ready.set_exception(EngineUnavailable(f"nats-server did not start. {last}".strip()))
        if self._reloaded is not None and not self._reloaded.done():
            self._reloaded.set_exception(EngineUnavailable("nats-server exited."))
        if not self.ended.done():
            self.ended.set_result(None)
