"""Credentials that the proxy puts into requests of a sandbox, which itself never has them.

Each is a value from the server's environment or from a private file, for one host and one header. A file is read for
every use, so that a new value counts at once.
"""

import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import InvalidArgument
from ..model.credential_rules import CredentialRule, is_header_value
from ..model.host_rules import host_name

_LARGEST = 64 << 10


@dataclass(frozen=True, slots=True)
class Credential:
    """A rule with its value."""

    rule: CredentialRule
    value: str = field(repr=False)
    secret: str = field(repr=False)
    """The value alone, without what stands before it."""


def read_credential(rule: CredentialRule, environment: Mapping[str, str]) -> Credential:
    """The value of a rule. InvalidArgument, which does not repeat it, if it cannot be used. Blocks on the disk."""
    kind, _, name = rule.source.partition(":")
    secret = environment.get(name, "") if kind == "env" else _read_file(Path(name).expanduser())
    secret = secret.strip()
    if not secret or not is_header_value(secret):
        problem = "is not set" if not secret else "has characters that no header can have"
        raise InvalidArgument(f"The credential for {rule.rule.text} ({rule.source}) {problem}.", field="credentials")
    prefix = rule.prefix
    if prefix is None:
        prefix = "Bearer " if rule.header.lower() == "authorization" and " " not in secret else ""
    return Credential(rule, prefix + secret, secret)


def _read_file(path: Path) -> str:
    try:
        # A pipe in its place must not keep us waiting for a writer.
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise InvalidArgument(f"The credential in {path} is no regular file.", field="credentials")
            if sys.platform != "win32" and stat.S_IMODE(facts.st_mode) & 0o077:
                raise InvalidArgument(f"The credential in {path} can be read by others; `chmod 600` it.")
            return file.read(_LARGEST).decode("utf-8")
    except (OSError, UnicodeError) as error:
        raise InvalidArgument(f"The credential in {path} cannot be read: {error}", field="credentials") from None


def same_host(text: str, host: str, port: int, usual: int) -> bool:
    """Whether a Host header names this host and port; `usual` is the port that need not be written."""
    name, colon, written = text.rpartition(":")
    if not colon or written.endswith("]"):
        name, written = text, str(usual)
    try:
        return host_name(name) == host and written == str(port)
    except ValueError:
        return False
