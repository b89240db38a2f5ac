"""The entry point. Serving on stdio takes the fast way in; every other command is loaded only when it is called."""

import sys


def main() -> int:
    """Runs the command on the command line; the value is the exit code."""
    if sys.argv[1:] in ([], ["serve"]):
        from .greeting import greet  # noqa: PLC0415 - the fast way in imports next to nothing

        return greet()
    from .commands.parser import run  # noqa: PLC0415 - and nobody else should pay for the rest

    return run(sys.argv[1:])
