"""Every subject, bucket and stream of a fleet, in one place: permissions are granted by these names.

A machine's id, a session's id and a connection's id are tokens of a subject: letters, digits and hyphens only.
"""

import re
from typing import Final

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")

MACHINES: Final = "fleet_machines"
"""Bucket with a time to live: machine id → the machine's report. A machine that is not in it is offline."""
SESSIONS: Final = "fleet_sessions"
"""Bucket: session id → machine, epoch and principal, the holder of a session. Changed only by compare-and-swap."""
RECORDS: Final = "fleet_records"
"""Bucket: session id → the session's record (options, limits, spending, last state) as its holder last wrote it."""
TRANSCRIPTS: Final = "FLEET_TRANSCRIPTS"
"""Stream of `fleet.transcript.SESSION`: the entries of each conversation, appended with the expected sequence."""
TREES: Final = "fleet_trees"
"""Object store: git bundles of the working trees."""
MEMBERS: Final = "fleet_members"
"""Bucket: machine id → the machine's name, its public key and whether it is drained. Written by the operator alone."""
KEYS: Final = "fleet_keys"
"""Bucket: hash of principal and message key → the chosen machine. A repeated call counts once."""

PUSH: Final = "fleet_push"
"""Bucket: hash of the principal → when and where to notify them; receivers are sealed."""
REMOVALS: Final = "fleet_removals"
"""Bucket: hash of the principal → that they were removed, for offline machines. Revisions number the removals."""


def token(text: str) -> str:
    """The text itself, if it may be part of a subject; otherwise ValueError. Build subjects only from this."""
    if not _TOKEN.fullmatch(text):
        raise ValueError(f"{text!r} cannot be part of a subject")
    return text


def transcript(session_id: str) -> str:
    """The subject of a conversation's entries."""
    return f"fleet.transcript.{token(session_id)}"


def keeper(machine_id: str, verb: str) -> str:
    """Where a machine asks the keeper for what its key does not permit directly."""
    return f"fleet.keeper.{token(machine_id)}.{token(verb)}"


def joining(ticket_id: str) -> str:
    """Where the holder of a ticket asks for admission."""
    return f"fleet.join.{token(ticket_id)}"


def operating(verb: str) -> str:
    """Where the operator requests a ticket or the removal of a machine."""
    return f"fleet.operator.{token(verb)}"


def inbox(user_id: str) -> str:
    """Where the answers to a user's requests arrive, separate for each user so that no other can read them."""
    return f"_INBOX_{token(user_id)}"


def entry(bucket: str, key: str) -> str:
    """The subject for writing a key of a bucket."""
    return f"$KV.{bucket}.{token(key)}"


def opening(machine_id: str) -> str:
    """Where a new connection to a machine is requested (request and reply)."""
    return f"fleet.machine.{token(machine_id)}.open"


def to_machine(machine_id: str, connection_id: str) -> str:
    """Messages from the gateway's side of a connection."""
    return f"fleet.machine.{token(machine_id)}.c.{token(connection_id)}"


def to_gateway(machine_id: str, connection_id: str) -> str:
    """Messages from the machine's side of a connection. Contains the machine, so that its key can be restricted to its
    own."""
    return f"fleet.gateway.{token(machine_id)}.c.{token(connection_id)}"
