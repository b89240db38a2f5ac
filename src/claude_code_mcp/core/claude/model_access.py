"""Which credentials of the model a session gets.

By the operator's choice the principals of a server share what the server's environment has (`environment`), get a copy
of the login of the server's user (`login`), or have each their own, in a directory with a file per principal:
`NAME.env` with lines `VARIABLE=value`, and `NAME.credentials.json`, a login that Claude Code has written. With such a
directory nothing of the server's own credentials is passed on, so that a principal without a file has none.

Whatever a session gets, its commands can read.
"""

import os
import stat
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from ..errors import InvalidArgument
from ..redaction import hide_shapes

CREDENTIALS_FILE = ".credentials.json"
"""Claude Code's login, in its configuration directory."""
_CREDENTIALS = (
    *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_CUSTOM_HEADERS", "ANTHROPIC_FOUNDRY_API_KEY"),
    "CLAUDE_CODE_OAUTH_TOKEN",
)
_PROVIDER_CREDENTIALS = {
    "CLAUDE_CODE_USE_BEDROCK": ("AWS_",),
    "CLAUDE_CODE_USE_VERTEX": ("GOOGLE_", "CLOUD_ML_", "VERTEX_"),
    "CLAUDE_CODE_USE_FOUNDRY": ("AZURE_",),
}
"""By the switch that selects a provider, the prefixes of variables with its credentials."""
_ACCESS = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_CUSTOM_HEADERS",
    _CREDENTIALS[-1],
)
"""How Claude Code reaches the model, with its credentials."""
_PROVIDERS = {
    "CLAUDE_CODE_USE_BEDROCK": (
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_BEARER_TOKEN_BEDROCK", "AWS_REGION"),
        *("AWS_DEFAULT_REGION", "ANTHROPIC_BEDROCK_BASE_URL", "ANTHROPIC_BEDROCK_SERVICE_TIER"),
        *("ANTHROPIC_SMALL_FAST_MODEL_AWS_REGION", "CLAUDE_CODE_SKIP_BEDROCK_AUTH"),
    ),
    "CLAUDE_CODE_USE_VERTEX": (
        *("ANTHROPIC_VERTEX_PROJECT_ID", "ANTHROPIC_VERTEX_BASE_URL", "CLOUD_ML_REGION", "GOOGLE_CLOUD_PROJECT"),
        *("GOOGLE_APPLICATION_CREDENTIALS", "GCLOUD_PROJECT", "CLAUDE_CODE_SKIP_VERTEX_AUTH"),
    ),
    "CLAUDE_CODE_USE_FOUNDRY": (
        *("ANTHROPIC_FOUNDRY_API_KEY", "ANTHROPIC_FOUNDRY_BASE_URL", "ANTHROPIC_FOUNDRY_RESOURCE", "AZURE_CLIENT_ID"),
        *("AZURE_CLIENT_SECRET", "AZURE_TENANT_ID", "CLAUDE_CODE_SKIP_FOUNDRY_AUTH"),
    ),
}
"""By the switch that selects a provider, the variables with which Claude Code reaches it."""
_PLAIN = frozenset(
    {
        *("PATH", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR"),
        *("TZ", "CI"),
        # Certificates of a proxy or a gateway; the files are given by `readable`
        *("NODE_EXTRA_CA_CERTS", "NODE_USE_SYSTEM_CA", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
        *("CURL_CA_BUNDLE", "GIT_SSL_CAINFO"),
        # How Claude Code works
        *("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "ANTHROPIC_BETAS", "API_TIMEOUT_MS", "DO_NOT_TRACK"),
        *("BASH_DEFAULT_TIMEOUT_MS", "BASH_MAX_TIMEOUT_MS", "BASH_MAX_OUTPUT_LENGTH", "MAX_THINKING_TOKENS"),
        *("CLAUDE_BASH_MAINTAIN_PROJECT_WORKING_DIR", "CLAUDE_AUTOCOMPACT_PCT_OVERRIDE", "CLAUDE_CODE_EFFORT_LEVEL"),
        *("CLAUDE_CODE_SUBAGENT_MODEL", "CLAUDE_CODE_SUBPROCESS_ENV_SCRUB", "CLAUDE_STREAM_IDLE_TIMEOUT_MS"),
        *("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY", "ENABLE_TOOL_SEARCH"),
        *("IS_SANDBOX", "MCP_TIMEOUT", "MCP_TOOL_TIMEOUT", "MAX_MCP_OUTPUT_TOKENS", "SLASH_COMMAND_TOOL_CHAR_BUDGET"),
    }
)
"""Variables that a sandbox gets from the server's environment; all others are withheld."""
_PLAIN_PREFIXES = (
    *("LC_", "DISABLE_", "ANTHROPIC_DEFAULT_", "CLAUDE_CODE_DISABLE_", "CLAUDE_CODE_ENABLE_", "CLAUDE_CODE_MAX_"),
    "CLAUDE_CODE_AUTO_COMPACT_",
)
_PROXIES = frozenset(
    name for proxy in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY") for name in (proxy, proxy.lower())
)


def sandbox_variables(
    environment: Mapping[str, str], config_dir: str, home: str, listed: Collection[str] = ()
) -> dict[str, str]:
    """The environment of a sandbox with this home: what every program and Claude Code need, the access to the model
    with its credentials, and the profile's variables. Everything else is withheld, and so are addresses with a password
    and other values that look like secrets, unless listed."""
    kept = {name: value for name, value in environment.items() if name in listed or _enters(name, value, environment)}
    return {**kept, "HOME": home, "CLAUDE_CONFIG_DIR": config_dir, "TMPDIR": "/tmp"}  # noqa: S108 - the sandbox's own


def withheld_proxies(environment: Mapping[str, str], listed: Collection[str]) -> list[str]:
    """Proxy variables that a sandbox does not get because they contain a password."""
    return sorted(name for name in _PROXIES & environment.keys() - {*listed} if "@" in environment[name])


def _enters(name: str, value: str, environment: Mapping[str, str]) -> bool:
    if _is_model_access(name, environment):
        return True
    if name in _PROXIES:
        return "@" not in value
    return (name in _PLAIN or name.startswith(_PLAIN_PREFIXES)) and hide_shapes(value) == value


def _is_model_credential(name: str, environment: Mapping[str, str]) -> bool:
    switched_on = (names for switch, names in _PROVIDER_CREDENTIALS.items() if environment.get(switch))
    return name in _CREDENTIALS or any(name.startswith(prefixes) for prefixes in switched_on)


def _is_model_access(name: str, environment: Mapping[str, str]) -> bool:
    return name in _ACCESS or any(name in names for switch, names in _PROVIDERS.items() if environment.get(switch))


class PrincipalCredentials:
    """The credentials of several principals: `environment`, `login`, or a directory with separate files."""

    def __init__(self, choice: "str | Path") -> None:
        self._directory = choice if isinstance(choice, Path) else None
        self._shares_login = choice == "login"

    def applied(self, environment: Mapping[str, str], principal: str) -> dict[str, str]:
        """The environment with a principal's credentials. Raises InvalidArgument if its file cannot be used. Blocks."""
        if self._directory is None:
            return dict(environment)
        own = _read_variables(self._file(principal, ".env"))
        # Nothing of the server's own, even if the file has another kind of credential: the CLI would choose between
        # them.
        others = {name: value for name, value in environment.items() if not _is_model_credential(name, environment)}
        return {**others, **own}

    def login(self, principal: str, user_dir: str) -> Path | None:
        """The login of which a principal gets a copy; None if it gets none. `user_dir` is the user's directory."""
        if self._directory is not None:
            return self._file(principal, CREDENTIALS_FILE)
        return Path(user_dir, CREDENTIALS_FILE) if self._shares_login else None

    def _file(self, principal: str, suffix: str) -> Path:
        assert self._directory is not None
        # Such a name would lead to a file elsewhere, or to a hidden one.
        if os.sep in principal or principal.startswith("."):
            raise InvalidArgument(f"The principal name {principal!r} cannot be used as the name of a credentials file.")
        return self._directory / f"{principal}{suffix}"


def _read_variables(path: Path) -> dict[str, str]:
    """The variables in a file of `NAME=value` lines; none if there is no file."""
    try:
        with open(path, encoding="utf-8") as file:
            # Checked on the open file: its name may refer to another file by now.
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
