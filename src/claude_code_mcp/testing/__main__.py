"""`python -m claude_code_mcp.testing`: a scripted model to try things by hand."""

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Sequence

from claude_code_mcp.testing.scripted_model import ScriptedModel, model_environment


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C, after printing what to export."""
    parser = argparse.ArgumentParser(prog="python -m claude_code_mcp.testing", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="the port on 127.0.0.1 (default: a free one)")
    options = parser.parse_args(arguments)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_serve(options.port))
    except (OSError, OverflowError) as error:
        sys.stderr.write(f"cannot listen on port {options.port}: {error}\n")
        return 1
    return 0


async def _serve(port: int) -> None:
    async with ScriptedModel(port) as model:
        lines = [f"Scripted model on {model.url} (Ctrl-C stops it). To use it:", ""]
        lines += [f"  export {name}={value}" for name, value in model_environment(model.url).items()]
        sys.stdout.write("\n".join([*lines, "", ""]))
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    sys.exit(main())
