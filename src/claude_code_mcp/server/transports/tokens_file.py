"""Reads the operator's tokens: one in the settings, others in a file. Weak tokens, duplicate names and reserved names
are errors.
"""

import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from ...core.config import Settings
from ...core.errors import InvalidArgument
from ...core.model.caller import is_reserved
from ...core.private_files import private_directory, read_secret, replace_file
from .identity import Identity

_MIN_LENGTH = 24
_MIN_DISTINCT = 10
_MAX_BYTES = 4 << 20


def load_tokens(settings: Settings, principal: str = "default", *, may_be_empty: bool = False) -> dict[str, str]:
    """Callers by token, from the settings (the token of `principal`) and from the tokens file; InvalidArgument for
    weak, duplicate or unreadable tokens, and for a file without tokens unless it `may_be_empty`. Blocks on the disk."""
    tokens: dict[str, str] = {}
    if settings.http_token is not None:
        _add(tokens, principal, settings.http_token.get_secret_value(), "CLAUDE_CODE_MCP_TOKEN")
    if settings.http_tokens_file is not None:
        listed = _read_file(settings.http_tokens_file)
        if not listed and not may_be_empty:
            raise InvalidArgument(f"The tokens file {settings.http_tokens_file} contains no token.")
        for name, token in listed.items():
            if is_reserved(name):
                raise _taken(f"the tokens file {settings.http_tokens_file}", name)
            _add(tokens, name, token, f"the token of {name!r} in {settings.http_tokens_file}")
    return tokens


TOKEN_FILE = "http-token"  # noqa: S105 - a name
"""The file with the token that a server created, in the state directory, which sandboxes cannot see."""


def created_token(state_dir: Path) -> tuple[str, bool]:
    """The token in this state directory, created if there is none, and whether it was created now. Raises OSError, and
    InvalidArgument for a file that others can read. Blocks on the disk."""
    file, made = private_directory(state_dir) / TOKEN_FILE, secrets.token_urlsafe(32)
    temporary = file.with_name(f"{TOKEN_FILE}.{secrets.token_hex(8)}")
    replace_file(temporary, f"{made}\n".encode())
    try:
        # Linking fails if another server was first: then all have the same token.
        os.link(temporary, file)
    except FileExistsError:
        try:
            return read_secret(file, _MAX_BYTES).strip(), False
        except OSError as error:
            raise InvalidArgument(f"The token in {file} cannot be used: {error.strerror or error}.") from None
    finally:
        temporary.unlink()
    return made, True


def _taken(where: str, name: str) -> InvalidArgument:
    return InvalidArgument(f"{where}: the name {name!r} is taken; every caller needs a different name.")


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
        raise InvalidArgument(f"{where} is used twice; every caller needs a different token.")
    tokens[token] = name


def _read_file(path: Path) -> dict[str, str]:
    """The tokens in the file, by name. InvalidArgument if the file cannot be used."""
    try:
        lines = read_secret(path, _MAX_BYTES).splitlines()
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


def identities(tokens: Mapping[str, str]) -> dict[str, Identity]:
    return {
        token: Identity.of_operator_token(name, hashlib.sha256(token.encode()).hexdigest())
        for token, name in tokens.items()
    }
