"""`config`: the settings in force, their reference, and how clients are registered."""

import argparse
import os
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from ..client.connections import address_of
from ..config import CONFIG_FILE_VARIABLE, Settings, description_of, load_settings, variable_of
from ..errors import InvalidArgument
from ..shared import place
from .flags import add_config_file, add_json, print_json
from .registration import HOSTS, TOKEN, ServerAddress, install_by_command, install_in_file, own_command

_PAGE = """\
# Settings

An argument on the command line beats an environment variable, a variable beats the TOML file, the file beats the
default. The file is named by `--config` or `CLAUDE_CODE_MCP_CONFIG` and may use the names of either column:

```toml
max_sessions = 20
PERMISSION_TIMEOUT_MS = 600000
```

A value that does not parse is named in one line on stderr; over stdio the server then stays and refuses every call with
that line, until its input ends. `claude-code-mcp config` prints what is in force. This page is made by
`claude-code-mcp config --markdown`.

| variable | name in the file | default | meaning |
| --- | --- | --- | --- |
"""


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "config",
        help="print the settings in force, or how to register this server in a client",
        description="Without an argument prints the settings in force with the variable that sets each. With the "
        "name of a client prints what registers this server there.",
    )
    parser.add_argument("client", nargs="?", choices=sorted(HOSTS), help="print the registration for this client")
    parser.add_argument(
        "--own", action="store_true", help="with CLIENT: a server of its own, not the one that all clients share"
    )
    parser.add_argument("--url", metavar="URL", help="with CLIENT: the entry for a server that runs with --http there")
    parser.add_argument("--install", action="store_true", help="with CLIENT: write it after showing what changes")
    parser.add_argument("--yes", action="store_true", help="with --install: do not ask")
    parser.add_argument("--markdown", action="store_true", help="print the reference of all settings as Markdown")
    add_json(parser, "print the settings in force as a JSON object")
    add_config_file(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.json and (arguments.client or arguments.markdown):
        raise InvalidArgument("--json is for the settings in force: it goes with neither CLIENT nor --markdown.")
    if (arguments.own or arguments.url or arguments.install) and not arguments.client:
        raise InvalidArgument("--own, --url and --install go with the name of a client.")
    if arguments.markdown:
        print(settings_page(), end="")
        return 0
    if arguments.client:
        return _register(arguments)
    settings = load_settings(file=arguments.config)
    values = {variable_of(name): value for name, value in settings.model_dump(mode="json").items()}  # hides secrets
    if arguments.json:
        print_json(values)
        return 0
    for variable, value in values.items():
        print(f"{variable}={_as_variable(value)}")
    print(f"\nTo register this server: claude-code-mcp config {{{','.join(sorted(HOSTS))}}}")
    return 0


def _as_variable(value: object) -> str:
    """A value as its variable takes it."""
    return ",".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def settings_page() -> str:
    """The reference page of all settings."""
    rows = [
        f"| `{variable_of(name)}` | `{name}` | {_default(field)} | {description_of(name)} |"
        for name, field in Settings.model_fields.items()
    ]
    return _PAGE + "\n".join(rows) + "\n"


def _default(field: FieldInfo) -> str:
    value = field.default
    if field.default_factory is not None:
        return "depends on the machine"
    if value in (None, "", ()):
        return ""
    return f"`{','.join(value)}`" if isinstance(value, tuple) else f"`{value}`"


# -- clients ------------------------------------------------------------------------------------------------------


def _register(arguments: argparse.Namespace) -> int:
    host, address = HOSTS[arguments.client], _registration(arguments)
    if not arguments.install:
        print(host.instructions(address))
        return 0
    if arguments.client == "claude-code":
        return install_by_command(address, yes=arguments.yes)
    if host.file is None or host.merged is None:
        raise InvalidArgument(f"--install: {arguments.client} has no file of its own.")
    return install_in_file(host.file(), host.merged, address, yes=arguments.yes)


def _registration(arguments: argparse.Namespace) -> ServerAddress:
    if arguments.url:
        if arguments.client == "claude-desktop":
            raise InvalidArgument("--url: Claude Desktop takes servers at a URL in Settings, Connectors only.")
        return ServerAddress(url=address_of(arguments.url).geturl(), with_token=bool(os.environ.get(TOKEN)))
    shared = ["--shared"] if not arguments.own and place.possible() else []
    file = arguments.config or os.environ.get(CONFIG_FILE_VARIABLE)
    config = ["--config", str(Path(file).expanduser().absolute())] if file else []
    return ServerAddress([*own_command(), *shared, *config])
