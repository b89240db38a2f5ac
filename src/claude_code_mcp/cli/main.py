"""The entry point. Serving on stdio begins with the greeting, which imports almost nothing; every other command is
loaded only when it is called."""

import os
import sys

from ..core.processes.environment import OWN_PREFIX, too_deep
from ..sdk_version import UnsupportedSdk, check_sdk_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..startup.greeting.loop import Serve


def main() -> int:
    """Runs the command on the command line; the value is the exit code."""
    try:
        return _run(sys.argv[1:])
    except UnsupportedSdk as error:
        sys.stderr.write(f"claude-code-mcp: {error}\n")
        return 1


def _run(argv: list[str]) -> int:
    if not argv or (argv[0].startswith("-") and not _is_for_all_commands(argv[0])):
        argv = ["serve", *argv]
    if argv[0] == "serve" and too_deep(os.environ) and not {"-h", "--help"} & set(argv):
        from ..startup.nested import serve_nothing  # noqa: PLC0415 - the usual start does not need it

        return serve_nothing(argv)
    if argv[0] == "serve" and not any(argument.startswith(("-h", "--h")) for argument in argv):
        if _is_shared(argv):
            from ..startup.shared.front import serve_shared  # noqa: PLC0415 - the usual start does not need it

            return serve_shared(argv, _load)
        from ..startup.greeting.loop import greet  # noqa: PLC0415 - a command does not need it

        return greet(argv, _load)
    from .parser import run  # noqa: PLC0415 - the greeting must not wait for it

    return run(argv)


def _is_for_all_commands(flag: str) -> bool:
    """Whether a flag belongs to `claude-code-mcp` itself; argparse takes the beginning of a long one for the whole."""
    return flag in ("-h", "-V") or (len(flag) > 2 and any(full.startswith(flag) for full in ("--help", "--version")))


def _is_shared(argv: list[str]) -> bool:
    """Whether a server on stdio is the shared server of all clients. argparse accepts `--sh` as the whole flag."""
    flagged = any(len(argument) > 3 and "--shared".startswith(argument) for argument in argv)
    return flagged or os.environ.get(f"{OWN_PREFIX}SHARED", "").lower() in ("1", "true", "yes", "on")


def _load() -> "Serve":
    """Imports all that the first call on stdio needs, and nothing else: a client waits for it."""
    import gc  # noqa: PLC0415

    from ..startup.greeting import light_sdk  # noqa: PLC0415

    check_sdk_version()
    gc.disable()  # imported objects stay; scanning them repeatedly takes a tenth of the time
    try:
        light_sdk.prepare()
        from .. import serving  # noqa: F401, PLC0415 - loaded before it is needed
        from ..server.transports import stdio  # noqa: F401, PLC0415
        from .parser import run  # noqa: PLC0415
    finally:
        gc.freeze()
        gc.enable()
    return run
