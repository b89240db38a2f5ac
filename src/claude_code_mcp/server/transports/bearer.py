"""Bearer tokens: read once at the start, refused when weak, compared in constant time."""

import hmac
import os
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from mcp.server.auth.provider import AccessToken, TokenVerifier

from ...config import Settings
from ...errors import InvalidArgument
from ...service import LOCAL

_MIN_LENGTH = 24
_MIN_DISTINCT = 10
SCOPE = "claude-code"


def load_tokens(settings: Settings, owner: str = "default") -> dict[str, str]:
    """Callers by token, from the settings, where it is that of the `owner`, and from the file that they name;
    InvalidArgument for weak, repeated or unreadable ones."""
    tokens: dict[str, str] = {}
    if settings.http_token is not None:
        _add(tokens, owner, settings.http_token.get_secret_value(), "CLAUDE_CODE_MCP_TOKEN")
    if settings.http_tokens_file is not None:
        for name, token in _read_file(settings.http_tokens_file).items():
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
        with open(path, "rb") as file:
            _check_owner(path, os.fstat(file.fileno()))
            lines = file.read().decode("utf-8-sig").splitlines()
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
    if not tokens:
        raise InvalidArgument(f"The tokens file {path} holds no token.")
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


class StaticTokens(TokenVerifier):
    """Verifies a fixed set of tokens. Every one is compared, so that the time tells nothing about which one fits."""

    def __init__(self, names: Mapping[str, str], resource: str, refused: Callable[[], None] = lambda: None) -> None:
        """`refused` is called for every unknown token."""
        self._names = [(token.encode(), name) for token, name in names.items()]
        self._resource = resource
        self._refused = refused

    async def verify_token(self, token: str) -> AccessToken | None:
        candidate, caller = token.encode("utf-8", "surrogateescape"), None
        for known, name in self._names:
            if hmac.compare_digest(candidate, known):
                caller = name
        if caller is None:
            self._refused()
            return None
        return AccessToken(token=token, client_id=caller, scopes=[SCOPE], resource=self._resource)
