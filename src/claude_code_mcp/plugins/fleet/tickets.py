"""Tickets, each of which admits one machine, and the keys of admitted machines.

A ticket is a line of text: the server's address, the authority that signed its certificate, and a key that may only ask
for admission. The machine creates its own key, which never leaves it, and sends the public half; that uses up the
ticket. All keys are in one file on the server's machine, from which the users of the NATS server are generated: any
other key is refused, and its connections are closed.
"""

import base64
import binascii
import hashlib
import json
import os
import re
import ssl
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

import anyio.to_thread
import nkeys  # type: ignore[import-untyped]

from ...core.errors import InvalidArgument, PermissionDenied
from ...core.private_files import private_directory, read_secret, replace_file
from . import names
from .connection import FleetConnection, connect
from .nats_server import SERVER_NAME, User, client_context
from .store_keeper import KeeperJetStream

TICKET_SECONDS: Final = 3600.0
_PREFIX = "fleet1."
_MAX_FILE = 8 << 20
_REQUEST_SECONDS = 5.0
_MAX_NAME = 100


def new_seed() -> str:
    """A new private key of a NATS user."""
    return bytes(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)).decode()


def public_key(seed: str) -> str:
    """The public half of a key."""
    return bytes(nkeys.from_seed(bytearray(seed.encode())).public_key).decode()


def machine_id_of(key: str) -> str:
    """The id of the machine with this public key, so that it cannot choose another's."""
    return f"m-{hashlib.sha256(key.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a new machine needs. Its text is secret until it is used."""

    id: str
    address: str
    """`tls://HOST:PORT`."""
    authority: str
    seed: str = field(repr=False)

    def __str__(self) -> str:
        certificate = "".join(self.authority.split("-----")[2].split())
        fields = json.dumps([self.id, self.address, certificate, self.seed], separators=(",", ":"))
        return _PREFIX + base64.urlsafe_b64encode(fields.encode()).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses a ticket. Raises InvalidArgument, which does not repeat the text."""
        text = text.strip()
        try:
            if not text.startswith(_PREFIX):
                raise ValueError
            encoded = text.removeprefix(_PREFIX)
            ticket_id, address, authority, seed = json.loads(
                base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
            )
            ticket = cls(names.token(ticket_id), str(address), _expanded(authority), str(seed))
            public_key(ticket.seed)
        except (ValueError, TypeError, binascii.Error, nkeys.NkeysError):
            raise InvalidArgument(
                "This is not a valid ticket. `claude-code-mcp fleet ticket` prints one.", field="join"
            ) from None
        return ticket


def _expanded(text: str) -> str:
    lines = "\n".join(text[at : at + 64] for at in range(0, len(text), 64))
    return f"-----BEGIN CERTIFICATE-----\n{lines}\n-----END CERTIFICATE-----\n"


# -- the machine's side -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MachineKey:
    """A machine's data about its fleet, in a file private to its user."""

    address: str
    authority: str
    seed: str = field(repr=False)
    ticket_id: str = ""
    admitted: bool = False
    """False until the server has answered. The key is stored before that, so that a lost answer can be requested
    again."""

    @property
    def machine_id(self) -> str:
        """The id under which the fleet knows this machine."""
        return machine_id_of(public_key(self.seed))

    def save(self, file: Path) -> None:
        """Writes the file (0600), durably. Blocks."""
        private_directory(file.parent)
        replace_file(file, json.dumps(asdict(self)).encode())

    @classmethod
    def load(cls, file: Path) -> Self | None:
        """The key in a file; None if there is none. Raises InvalidArgument if others can read it or it is damaged.
        Blocks."""
        try:
            return cls(**json.loads(read_secret(file, _MAX_FILE)))
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise InvalidArgument(f"{file} {problem.strerror}.") from None
        except (ValueError, TypeError):
            raise InvalidArgument(f"{file} is not a machine's key.") from None


async def connect_machine(key: MachineKey) -> FleetConnection:
    """Connects with a machine's own key. Its JetStream requests go through the keeper."""
    connection = await _connect(key.address, key.authority, key.seed, key.machine_id)
    return connect_through_keeper(connection, key.machine_id, reports_itself=False)


async def connect_operator(address: str, authority: str, seed: str) -> FleetConnection:
    """Connects with the key that has all permissions: of the gateway, the keeper and the operator."""
    return await _connect(address, authority, seed, OPERATOR)


async def connect_ticket(ticket: Ticket) -> FleetConnection:
    """Connects with a ticket's key."""
    return await _connect(ticket.address, ticket.authority, ticket.seed, ticket.id)


async def _connect(address: str, authority: str, seed: str, user_id: str) -> FleetConnection:
    return await connect(
        address,
        tls=client_context(authority),
        tls_hostname=SERVER_NAME,
        tls_handshake_first=True,  # nothing in between can claim that there is no TLS
        nkeys_seed_str=seed,
        inbox_prefix=names.inbox(user_id),
    )


def credentials_seed(file: Path) -> str:
    """The secret key in a credentials file. Raises InvalidArgument for any other file. Blocks."""
    try:
        found = re.search(r"-----BEGIN USER NKEY SEED-----\s*([A-Z2-7]+)\s", read_secret(file, _MAX_FILE))
    except OSError as problem:
        raise InvalidArgument(f"{file} {problem.strerror}.", field="creds") from None
    if found is None:
        raise InvalidArgument(f"{file} contains no NATS user key.", field="creds")
    return found[1]


async def connect_credentials(url: str, file: Path) -> tuple[FleetConnection, str]:
    """Connects to the operator's own NATS with a credentials file, and returns this machine's id, which is derived from
    the user's public key. Raises InvalidArgument for any other file."""

    def read() -> str:
        try:
            token_text = read_secret(file, _MAX_FILE).split("-----BEGIN NATS USER JWT-----")[1].split("-----")[0]
            payload = token_text.strip().split(".")[1]
            subject = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["sub"]
        except OSError as problem:
            raise InvalidArgument(f"{file} {problem.strerror}.", field="creds") from None
        except (IndexError, ValueError, KeyError, TypeError):
            raise InvalidArgument(f"{file} contains no NATS user credentials.", field="creds") from None
        return machine_id_of(str(subject))

    machine_id = await anyio.to_thread.run_sync(read)
    context = ssl.create_default_context() if "tls://" in url else None
    connection = await connect(url, user_credentials=str(file), tls=context, inbox_prefix=names.inbox(machine_id))
    return connection, machine_id


def connect_through_keeper(connection: FleetConnection, machine_id: str, *, reports_itself: bool) -> FleetConnection:
    """The connection of a machine whose key may use JetStream only through the keeper, except for its own lease if it
    `reports_itself`."""
    kept = KeeperJetStream(connection.client, machine_id, _REQUEST_SECONDS, reports_itself=reports_itself)
    return replace(connection, jetstream=kept)


# -- the server's side ------------------------------------------------------------------------------------------------

OPERATOR: Final = "operator"


@dataclass(frozen=True, slots=True)
class AdmittedMachine:
    """A machine with a key."""

    name: str
    public_key: str
    joined: float


@dataclass(frozen=True, slots=True)
class IssuedTicket:
    """A ticket as stored by the server, without its secret."""

    public_key: str
    expires: float
    used_by: str = ""
    """The public key of the machine that used it."""


RESPONSES: Final = {"max": 1, "expires": "1m"}
"""A key may send one answer to each request that it receives."""


def machine_permissions(machine_id: str) -> dict[str, Any]:
    """The permissions of a machine's key."""
    return {
        "publish": {
            "allow": [
                f"fleet.gateway.{names.token(machine_id)}.>",
                f"fleet.keeper.{names.token(machine_id)}.>",
            ]
        },
        "subscribe": {"allow": [f"{names.inbox(machine_id)}.>", f"fleet.machine.{names.token(machine_id)}.>"]},
        "allow_responses": RESPONSES,
    }


def ticket_permissions(ticket_id: str) -> dict[str, Any]:
    """The permissions of a ticket's key, which can only ask for a machine key."""
    return {
        "publish": {"allow": [names.joining(ticket_id)]},
        "subscribe": {"allow": [f"{names.inbox(ticket_id)}.>"]},
    }


class KeyRing:
    """All keys that the server accepts, in a file. Every change is on disk on return. Blocks."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.operator_seed = ""
        self.machines: dict[str, AdmittedMachine] = {}
        self.tickets: dict[str, IssuedTicket] = {}

    @classmethod
    def opened(cls, file: Path) -> Self:
        """The keys in a file, which is created with an operator key if missing. Raises InvalidArgument for a damaged
        file: without its keys no machine could come back."""
        ring = cls(file)
        try:
            values = json.loads(read_secret(file, _MAX_FILE))
            ring.operator_seed = values["operator"]
            ring.machines = {name: AdmittedMachine(**value) for name, value in values["machines"].items()}
            ring.tickets = {name: IssuedTicket(**value) for name, value in values["tickets"].items()}
        except FileNotFoundError:
            private_directory(file.parent)
            ring.operator_seed = new_seed()
            ring._save()
        except OSError as problem:
            raise InvalidArgument(f"{file} {problem.strerror}.") from None
        except (ValueError, KeyError, TypeError):
            raise InvalidArgument(f"{file} is damaged. It holds the keys of the fleet's machines.") from None
        return ring

    def issue(self, address: str, authority: str, now: float | None = None) -> Ticket:
        """A new ticket for one machine, valid for an hour. Removes unusable tickets."""
        now = time.time() if now is None else now
        seed, ticket_id = new_seed(), f"t-{os.urandom(8).hex()}"
        kept = {name: issued for name, issued in self.tickets.items() if now < issued.expires}
        self.tickets = {**kept, ticket_id: IssuedTicket(public_key(seed), now + TICKET_SECONDS)}
        self._save()
        return Ticket(ticket_id, address, authority, seed)

    def admit(self, ticket_id: str, key: str, name: str, now: float | None = None) -> str:
        """Admits a machine and returns its id. It may repeat the call with the same key if the answer was lost. Raises
        PermissionDenied for a used, expired or unknown ticket, InvalidArgument for an invalid public key."""
        now = time.time() if now is None else now
        issued = self.tickets.get(ticket_id)
        if issued is None or now >= issued.expires:
            raise PermissionDenied("The ticket has expired or is not known here. Ask for a new one.")
        if issued.used_by and issued.used_by != key:
            raise PermissionDenied("The ticket has been used. Ask for a new one.")
        if not _is_public_key(key):
            raise InvalidArgument("This is not a public key.")
        machine_id = machine_id_of(key)
        if not issued.used_by:
            self.tickets[ticket_id] = replace(issued, used_by=key)
            self.machines[machine_id] = AdmittedMachine(name[:_MAX_NAME] or machine_id, key, now)
            self._save()
        return machine_id

    def admit_directly(self, key: str, name: str) -> str:
        """Admits the machine on which the server runs, or renames it."""
        machine_id = machine_id_of(key)
        found = self.machines.get(machine_id)
        if found is None or found.name != name:
            self.machines[machine_id] = AdmittedMachine(name, key, found.joined if found else time.time())
            self._save()
        return machine_id

    def remove(self, machine_id: str) -> None:
        """Revokes the key of a machine. Raises InvalidArgument if there is none."""
        machine = self.machines.pop(machine_id, None)
        if machine is None:
            raise InvalidArgument(f"Machine {machine_id} has no key here.")
        # Its ticket too: otherwise the same key could be admitted again with it.
        self.tickets = {name: each for name, each in self.tickets.items() if each.used_by != machine.public_key}
        self._save()

    def users(self, now: float | None = None, *, answering: str = "") -> Sequence[User]:
        """The users of the NATS server: the operator, each machine, and each ticket that can still be used or whose
        holder is being answered."""
        now = time.time() if now is None else now
        users: list[dict[str, Any]] = [{"nkey": public_key(self.operator_seed)}]
        for machine_id, machine in self.machines.items():
            users.append({"nkey": machine.public_key, "permissions": machine_permissions(machine_id)})
        for ticket_id, issued in self.tickets.items():
            if now < issued.expires and (not issued.used_by or ticket_id == answering):
                users.append({"nkey": issued.public_key, "permissions": ticket_permissions(ticket_id)})
        return users

    def _save(self) -> None:
        values = {
            "operator": self.operator_seed,
            "machines": {name: asdict(machine) for name, machine in self.machines.items()},
            "tickets": {name: asdict(issued) for name, issued in self.tickets.items()},
        }
        replace_file(self._file, json.dumps(values, indent=1).encode())


def _is_public_key(key: str) -> bool:
    """Whether NATS accepts it as a user's public key: an invalid one in its configuration stops the server."""
    try:
        raw = base64.b32decode(key)
    except (binascii.Error, ValueError):
        return False
    checksum = int(nkeys.crc16(bytearray(raw[:-2]))).to_bytes(2, "little")
    return len(raw) == 35 and raw[0] == nkeys.PREFIX_BYTE_USER and raw[-2:] == checksum and len(key) == 56
