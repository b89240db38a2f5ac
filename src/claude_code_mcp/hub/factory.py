"""Creates the hub of this machine: its servers, token storage, and the marks on server programs by which leftovers are
found when this process ends.
"""

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from urllib.parse import quote

from ..core.config import Settings
from ..core.model.paths import config_directory
from ..core.processes.environment import DEPTH, build_environment, depth
from ..core.processes.leftovers import new_mark
from ..core.state.state_directory import database_in
from .auth.credentials import FileVault, KeyringVault
from .auth.identity_provider import IdentityProvider
from .config_changes import HubSource
from .config_files import HubConfig
from .hub import Hub
from .hub_deps import HubDeps, OnNotification, ignore_notification
from .program_place import AS_CONFIGURED, ProgramPlace

log = logging.getLogger(__name__)


def hub_configuration(
    settings: Settings,
    environment: Mapping[str, str],
    project: str | None = None,
    serving_at: tuple[str, int] | None = None,
) -> HubConfig:
    """The servers of a project, by default of our start directory; servers at our own address are locked. Blocks on the
    disk."""
    return HubSource(settings, environment, project, serving_at).read()


def marked_environment(variables: Mapping[str, str], *, nested: bool = True) -> tuple[dict[str, str], str]:
    """The environment of a server's program, and the mark in it by which leftover processes are found.

    `nested` marks the program as nested in this server. Programs that a command starts are not marked, because one of
    them may be this server itself.
    """
    mark = new_mark()
    environment = build_environment(variables, {}, mark)
    if not nested:
        environment[DEPTH] = str(depth(variables))
    return environment, mark


def make_hub(
    settings: Settings,
    configuration: HubConfig,
    environment: Mapping[str, str],
    on_notification: OnNotification = ignore_notification,
    *,
    serving: bool = True,
    principal: str = "",
    programs: ProgramPlace = AS_CONFIGURED,
) -> Hub:
    """A hub for these servers, not connected yet. `serving` is False for a command's hub. A hub for one `principal` has
    separate tokens and memory, and does not use Claude Code's sign-ins."""
    directory = settings.state_dir / "mcp"  # `claude-code-mcp mcp login` also stores its tokens there
    if principal:
        directory = directory / "principals" / quote(principal, safe="")
    # The system's keyring, or files if there is none. Principals cannot see each other's secrets.
    vault = KeyringVault(FileVault(directory / "credentials"), principal)
    provider: IdentityProvider | None = None
    if settings.identity_provider is not None:
        secret = settings.identity_provider_secret
        provider = IdentityProvider(
            settings.identity_provider,
            settings.identity_provider_client,
            vault,
            None if secret is None else secret.get_secret_value(),
            settings.identity_provider_port,
            settings.identity_provider_token_file,
        )
    deps = HubDeps(
        environment,
        database_in(settings.state_dir),
        vault,
        Path(config_directory(environment)),
        child_environment=partial(marked_environment, nested=serving),
        on_notification=on_notification,
        identity_provider=provider,
        client_document=settings.client_metadata_url,
        uses_claude_sign_ins=not principal,
        principal=principal,
        programs=programs,
    )
    return Hub(configuration, settings, deps)
