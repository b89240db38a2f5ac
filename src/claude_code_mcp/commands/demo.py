"""`demo`: the whole story on the scripted model, told as it happens. Needs no account and leaves nothing behind."""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="see it work, with no account: a real MCP client drives real Claude Code on a scripted model",
        description="Starts the server over stdio as a client would, and lets real Claude Code sessions run on a "
        "scripted model in a temporary project: an edit is approved, a question answered, a plan reviewed, a turn "
        "interrupted and resumed.",
    )
    parser.set_defaults(run=_run)


def _run(_: argparse.Namespace) -> int:
    from .story import tell  # noqa: PLC0415 - loads the MCP SDK

    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="claude-code-mcp-demo-") as directory:
        asyncio.run(tell(Path(directory)))
    print(f"\nThat was everything, in {time.monotonic() - started:.1f} s. Nothing was left behind.")
    return 0
