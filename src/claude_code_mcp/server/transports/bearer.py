"""Bearer tokens as the operator wrote them down: read, and refused when weak, repeated or open to others. Who has one
at the moment is the matter of `callers`."""

import os
import stat
import sys
from pathlib import Path

from ...config import Settings
from ...errors import InvalidArgument
from ...service import LOCAL

_MIN_LENGTH = 24
_MIN_DISTINCT = 10
_LARGEST = 4 << 20


def load_tokens(settings: Settings, owner: str = "default", *, may_be_empty: bool = False) -> dict[str, str]:
    """Callers by token, from the settings, where it is that of the `owner`, and from the file that they name;
    InvalidArgument for weak, repeated or unreadable ones, and for a file without a token unless it `may_be_empty`.
    Blocks on the disk."""
    tokens: dict[str, str] = {}
    if settings.http_token is not None:
        _add(tokens, owner, settings.http_token.get_secret_value(), "CLAUDE_CODE_MCP_TOKEN")
    if settings.http_tokens_file is not None:
        listed = _read_file(settings.http_tokens_file)
        if not listed and not may_be_empty:
            raise InvalidArgument(f"The tokens file {settings.http_tokens_file} holds no token.")
        for name, token in listed.items():
            if name == LOCAL:
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
    """Tokens by name."""
    try:
        # A pipe in its place must not keep us waiting for a writer.
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            _check_owner(path, os.fstat(file.fileno()))
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise InvalidArgument(f"The tokens file {path} is too large.")
        lines = content.decode("utf-8-sig").splitlines()
    except (OSError, UnicodeError) as error:
        raise InvalidArgument(f"The tokens file {path} cannot be read: {error}") from None
    tokens: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        if len(fields) != 2 or fields[0] in tokens:
            raise InvalidArgument(f"Line {number} of {path} must be `name token`, each name once.")
        tokens[fields[0]] = fields[1]
    return tokens


def _check_owner(path: Path, opened: os.stat_result) -> None:
    """Checks the file that was opened, not the path, which may lead elsewhere by now."""
    if not stat.S_ISREG(opened.st_mode):
        raise InvalidArgument(f"The tokens file {path} is not a regular file.")
    if sys.platform == "win32":
        return
    if stat.S_IMODE(opened.st_mode) & 0o077:
        raise InvalidArgument(f"The tokens file {path} can be read by others; `chmod 600` it.")
    if opened.st_uid not in (os.geteuid(), 0):
        raise InvalidArgument(f"The tokens file {path} belongs to somebody else, who could change it.")
