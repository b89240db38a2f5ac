"""The callers with tokens that the operator has given out: one in the settings, others in a file.

A token that could be guessed, a name that two have, and a name that this server uses for something else stop the start.
`callers.py` follows the file while the server runs.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from ...config import Settings
from ...errors import InvalidArgument
from ...model.caller import is_reserved
from ...private_files import read_secret
from ...state.sign_ins import Identity

_MIN_LENGTH = 24
_MIN_DISTINCT = 10
_LARGEST = 4 << 20


def load_tokens(settings: Settings, principal: str = "default", *, may_be_empty: bool = False) -> dict[str, str]:
    """Callers by token, from the settings, where it is that of the `principal`, and from the file that they name;
    InvalidArgument for weak, repeated or unreadable ones, and for a file without a token unless it `may_be_empty`.
    Blocks on the disk."""
    tokens: dict[str, str] = {}
    if settings.http_token is not None:
        _add(tokens, principal, settings.http_token.get_secret_value(), "CLAUDE_CODE_MCP_TOKEN")
    if settings.http_tokens_file is not None:
        listed = _read_file(settings.http_tokens_file)
        if not listed and not may_be_empty:
            raise InvalidArgument(f"The tokens file {settings.http_tokens_file} holds no token.")
        for name, token in listed.items():
            if is_reserved(name):
                raise _taken(f"the tokens file {settings.http_tokens_file}", name)
            _add(tokens, name, token, f"the token of {name!r} in {settings.http_tokens_file}")
    return tokens


def _taken(where: str, name: str) -> InvalidArgument:
    return InvalidArgument(f"{where}: the name {name!r} is taken; every caller needs a name of its own.")


def _add(tokens: dict[str, str], name: str, token: str, where: str) -> None:
    if name in tokens.values():
        raise _taken(where, name)
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidArgument(f"{where} must consist of visible ASCII characters; no client could send it otherwise.")
    if len(token) < _MIN_LENGTH or len(set(token)) < _MIN_DISTINCT:
        raise InvalidArgument(
            f"{where} is too weak: use at least {_MIN_LENGTH} random characters, for example from "
            "`python -c 'import secrets; print(secrets.token_urlsafe(32))'`."
        )
    if token in tokens:
        raise InvalidArgument(f"{where} is used twice; every caller needs a token of its own.")
    tokens[token] = name


def _read_file(path: Path) -> dict[str, str]:
    """The tokens in the file, by the names of their callers. InvalidArgument if the file cannot be used."""
    try:
        lines = read_secret(path, _LARGEST).splitlines()
    except OSError as error:
        raise InvalidArgument(f"The tokens file {path} cannot be used: {error.strerror or error}.") from None
    tokens: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        if len(fields) != 2 or fields[0] in tokens:
            raise InvalidArgument(f"Line {number} of {path} must be `name token`, each name once.")
        tokens[fields[0]] = fields[1]
    return tokens


def credential_of(token: str) -> str:
    return f"token:{hashlib.sha256(token.encode()).hexdigest()}"


def identities(tokens: Mapping[str, str]) -> dict[str, Identity]:
    return {token: Identity(name, credential_of(token)) for token, name in tokens.items()}


def facts_of(file: os.PathLike[str] | None) -> object:
    """What is different when a file is; how it cannot be looked at, if so. Blocks on the disk."""
    if file is None:
        return None
    try:
        found = os.stat(file)
    except OSError as error:
        return error.errno
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_mode, found.st_uid
