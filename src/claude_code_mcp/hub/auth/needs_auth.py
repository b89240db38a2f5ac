"""Which servers want somebody to sign in, remembered so that they are not asked again and again."""

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from ...private_files import FILE, open_private, private_directory

REMEMBERED = 15 * 60.0


class NeedsAuthMemory:
    """A small file that several processes may share. Writes come one after another, each of them whole."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.time) -> None:
        self._file = file
        self._clock = clock
        self._turn = asyncio.Lock()

    async def remembers(self, key: str) -> bool:
        return key in await asyncio.to_thread(self._current)

    async def remember(self, key: str) -> None:
        await self._change(lambda entries: entries.update({key: self._clock()}))

    async def forget(self, key: str) -> None:
        if await self.remembers(key):
            await self._change(lambda entries: entries.pop(key, None))

    async def _change(self, change: Callable[[dict[str, float]], Any]) -> None:
        async with self._turn:
            await asyncio.to_thread(self._rewrite, change)

    def _rewrite(self, change: Callable[[dict[str, float]], Any]) -> None:
        private_directory(self._file.parent)
        with FileLock(f"{self._file}.lock", mode=FILE):
            entries = self._current()
            change(entries)
            new = self._file.with_suffix(".new")
            with open(open_private(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w", encoding="utf-8") as file:
                file.write(json.dumps(entries))
            os.replace(new, self._file)

    def _current(self) -> dict[str, float]:
        try:
            entries = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        now = self._clock()
        return {key: at for key, at in entries.items() if 0 <= now - at < REMEMBERED}
