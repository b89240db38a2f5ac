"""A process with a hub of its own, which calls a tool of a protected server once for each line that it reads.

`python -m tests.hub.refreshing DIRECTORY URL`: what the hub keeps is in the directory. It prints what calls return.
"""

import asyncio
import sys
from pathlib import Path

from .conftest import make_hub, text_of


async def main(root: Path, url: str) -> None:
    async with make_hub(root, {"x": {"type": "http", "url": url}}) as hub:
        await hub.call("x", "echo")
        print("ready", flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            try:
                print(text_of(await hub.call("x", "echo")), flush=True)
            except Exception as error:  # whatever it is, the test is to see it
                print(f"{type(error).__name__}: {error}".replace("\n", " "), flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
