"""Where a client comes from: what a session that it creates takes from it."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ClientOrigin:
    """The client's own working directory and environment; `id` is unique to the client while it lives."""

    directory: str
    environment: Mapping[str, str]
    id: str
