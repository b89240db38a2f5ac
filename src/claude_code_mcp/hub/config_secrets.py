"""The secrets in a server's configuration, and what may be shown of it."""

from collections.abc import Iterator

from ..redaction import (
    SHORTEST_OF_ONE_SERVER,
    Redactor,
    redact_headers,
    redact_url,
    secret_arguments,
    secret_values,
    secrets_of_url,
)
from .config_entry import IdeConfig, RemoteConfig, SdkConfig, ServerConfig, StdioConfig


def redactor_of(config: ServerConfig) -> Redactor:
    """Takes the secrets of one server out of what it says and what is said about it."""
    return Redactor(secrets_of(config), shortest=SHORTEST_OF_ONE_SERVER)


def describe(config: ServerConfig) -> dict[str, object]:
    """What may be shown of a configuration."""
    if isinstance(config, StdioConfig):
        return {"type": config.type, "command": redactor_of(config).text(" ".join([config.command, *config.args]))}
    if isinstance(config, SdkConfig):
        return {"type": config.type}
    return {"type": config.type, "url": redact_url(config.url), "headers": redact_headers(config.headers)}


def secrets_of(config: ServerConfig) -> Iterator[str]:
    """What a server was given and nobody else may see."""
    if isinstance(config, StdioConfig):
        yield from secret_values(config.env)
        yield from secret_arguments(config.args)
    elif isinstance(config, RemoteConfig):
        yield from secret_values(config.headers)
        yield from secrets_of_url(config.url)
        yield config.oauth.client_secret or ""
        if isinstance(config, IdeConfig):
            yield config.auth_token or ""
