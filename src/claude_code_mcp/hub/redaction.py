"""Keeps secrets of a server's configuration out of log lines, reasons and status."""

import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from .configuration import IdeConfig, RemoteConfig, SdkConfig, ServerConfig, StdioConfig

REDACTED = "[REDACTED]"
_SECRET_NAME = re.compile(
    r"auth|token|secret|password|passwd|credential|cookie|api[-_]?key|\bkey\b|_key\b", re.IGNORECASE
)
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]+", re.IGNORECASE)
_SHORTEST = 4
"""A shorter value cannot be told from ordinary text."""


def is_secret(name: str) -> bool:
    """Whether a header, a variable or a parameter of this name holds something that nobody else may see."""
    return _SECRET_NAME.search(name) is not None


def redact_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers as they may be shown."""
    return {name: REDACTED if is_secret(name) else value for name, value in headers.items()}


def redact_url(url: str) -> str:
    """The address without the name and password, and without its parameters, either of which may be secret."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" + ("?…" if parts.query else "")


class Redactor:
    """Removes the secrets of one server from any text."""

    def __init__(self, config: ServerConfig) -> None:
        values = sorted({value for value in _secrets(config) if len(value) >= _SHORTEST}, key=len, reverse=True)
        self._secret = re.compile("|".join(map(re.escape, values))) if values else None

    def __call__(self, text: str) -> str:
        if self._secret is not None:
            text = self._secret.sub(REDACTED, text)
        return _BEARER.sub(rf"\1 {REDACTED}", text)


def describe(config: ServerConfig) -> dict[str, object]:
    """What may be shown of a configuration."""
    if isinstance(config, StdioConfig):
        redact = Redactor(config)
        return {"type": config.type, "command": redact(" ".join([config.command, *config.args]))}
    if isinstance(config, SdkConfig):
        return {"type": config.type}
    return {"type": config.type, "url": redact_url(config.url), "headers": redact_headers(config.headers)}


def _secrets(config: ServerConfig) -> Iterable[str]:
    if isinstance(config, StdioConfig):
        yield from (value for name, value in config.env.items() if is_secret(name))
        yield from _secret_arguments(config.args)
    elif isinstance(config, RemoteConfig):
        yield from _secrets_of_remote(config)


def _secret_arguments(args: Iterable[str]) -> Iterable[str]:
    """`--api-key=VALUE` and `--api-key VALUE`."""
    before = ""
    for argument in args:
        name, equals, value = argument.partition("=")
        if argument.startswith("-") and equals and is_secret(name):
            yield value
        elif before.startswith("-") and "=" not in before and is_secret(before):
            yield argument
        before = argument


def _secrets_of_remote(config: RemoteConfig) -> Iterable[str]:
    for name, value in config.headers.items():
        if is_secret(name):
            yield value
            yield value.rpartition(" ")[2]
    parts = urlsplit(config.url)
    yield from filter(None, [parts.password, parts.query, config.oauth.client_secret])
    if isinstance(config, IdeConfig) and config.auth_token:
        yield config.auth_token
