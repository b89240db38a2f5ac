"""Which credentials of the model's provider a session gets, and which variables a sandbox.

By the operator's choice the principals of a server share what the server's environment has (`environment`), get a copy
of the login of the server's user (`login`), or have each their own, in a directory with a file per principal:
`NAME.env` with lines `VARIABLE=value`, and `NAME.credentials.json`, a login that Claude Code has written. With such a
directory nothing of the server's own credentials is passed on, so that a principal without a file has none.

Whatever a session gets, its commands can read.
"""

import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from ..errors import InvalidArgument
from ..redaction import is_secret_name

CREDENTIALS_FILE = ".credentials.json"
"""Claude Code's login, in its configuration directory."""
_MODEL = (
    *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_CUSTOM_HEADERS", "ANTHROPIC_FOUNDRY_API_KEY"),
    "CLAUDE_CODE_OAUTH_TOKEN",
)
_PROVIDERS = {
    "CLAUDE_CODE_USE_BEDROCK": ("AWS_",),
    "CLAUDE_CODE_USE_VERTEX": ("GOOGLE_", "CLOUD_ML_", "VERTEX_"),
    "CLAUDE_CODE_USE_FOUNDRY": ("AZURE_",),
}
"""By the switch that chooses a provider, how the names of its variables begin."""
_OUTSIDE = ("XDG_", "DBUS_", "SSH_", "GPG_", "WAYLAND_")
_ALSO_OUTSIDE = ("DISPLAY", "XAUTHORITY", "TMP", "TEMP", "TMPDIR")
"""Variables, by how they begin and by name, for what a sandbox does not see: directories of the user, sockets."""


def sandbox_variables(environment: Mapping[str, str], config_dir: str, home: str) -> dict[str, str]:
    """The environment without secrets other than the model's credentials, for a sandbox with this home."""
    kept = {name: value for name, value in environment.items() if _may_enter(name, environment)}
    return {**kept, "HOME": home, "CLAUDE_CONFIG_DIR": config_dir, "TMPDIR": "/tmp"}  # noqa: S108 - the sandbox's own


def _may_enter(name: str, environment: Mapping[str, str]) -> bool:
    if name.startswith(_OUTSIDE) or name in _ALSO_OUTSIDE:
        return False
    return _is_model_credential(name, environment) or not is_secret_name(name)


def _is_model_credential(name: str, environment: Mapping[str, str]) -> bool:
    prefixes = (prefix for switch, names in _PROVIDERS.items() if environment.get(switch) for prefix in names)
    return name in _MODEL or name.startswith(tuple(prefixes))


class PrincipalCredentials:
    """What each of several principals gets: `environment`, `login`, or a directory with files of their own."""

    def __init__(self, choice: "str | Path") -> None:
        self._directory = choice if isinstance(choice, Path) else None
        self._shares_login = choice == "login"

    def applied(self, environment: Mapping[str, str], principal: str) -> dict[str, str]:
        """The environment with the credentials of a principal. InvalidArgument if its file cannot be used. Blocks."""
        if self._directory is None:
            return dict(environment)
        own = _read_variables(self._file(principal, ".env"))
        others = {name: value for name, value in environment.items() if not _is_model_credential(name, environment)}
        return {**others, **own}

    def login(self, principal: str, user_dir: str) -> Path | None:
        """The login that a principal gets a copy of; None if it gets none. `user_dir` is the user's directory."""
        if self._directory is not None:
            return self._file(principal, CREDENTIALS_FILE)
        return Path(user_dir, CREDENTIALS_FILE) if self._shares_login else None

    def _file(self, principal: str, suffix: str) -> Path:
        assert self._directory is not None
        if os.sep in principal or principal.startswith("."):
            raise InvalidArgument(f"The name {principal!r} of a principal cannot be the name of a file of credentials.")
        return self._directory / f"{principal}{suffix}"


def _read_variables(path: Path) -> dict[str, str]:
    """The variables in a file of `NAME=value` lines; none if there is no file."""
    try:
        with open(path, encoding="utf-8") as file:
            if sys.platform != "win32" and stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise InvalidArgument(f"The credentials in {path} can be read by others; `chmod 600` it.")
            lines = [line.strip() for line in file]
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeError) as error:
        raise InvalidArgument(f"The credentials in {path} cannot be read: {error}") from None
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    if not all(name.isidentifier() and equals for name, equals, _ in pairs):
        raise InvalidArgument(f"Every line of {path} must be `NAME=value`.")
    return {name: value for name, _, value in pairs}
