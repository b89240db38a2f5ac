"""Flags of commands that are settings of a server."""

import argparse
from typing import get_args

from ..core.config import Settings
from ..core.settings_section import description_of, variable_of
from .conventions import add_config_file

SETTINGS_WITH_FLAG = ("on_disconnect", "toolsets")
"""Fields of `Settings` that can be set on the command line too."""


class _SettingFlag(argparse.Action):
    """A flag for a setting, whose help is read from the setting when it is shown."""

    @property
    def help(self) -> str:
        default = Settings.model_fields[self.dest].default
        listed = f" Default: {','.join(default)}." if isinstance(default, tuple) else ""
        return f"{description_of(self.dest, Settings)}{listed} ({variable_of(self.dest, Settings)})".replace("%", "%%")

    @help.setter  # noqa: A003
    def help(self, _: str | None) -> None:
        """`argparse` sets it to nothing."""

    def __call__(self, _: object, namespace: argparse.Namespace, value: object, __: object = None) -> None:
        setattr(namespace, self.dest, value)


def add_setting(parser: argparse.ArgumentParser, field: str) -> None:
    """Add a flag for a setting, with the setting's own choices, default and help."""
    setting = Settings.model_fields[field]
    choices = [choice for part in get_args(setting.annotation) for choice in get_args(part) if isinstance(choice, str)]
    several = isinstance(setting.default, tuple)
    parser.add_argument(
        f"--{field.replace('_', '-')}",
        action=_SettingFlag,
        choices=None if several else choices,
        metavar="NAMES" if several else None,
    )


def add_settings(action: argparse.ArgumentParser) -> None:
    """The arguments that are settings of the server."""
    add_config_file(action)
    for field in SETTINGS_WITH_FLAG:
        add_setting(action, field)
