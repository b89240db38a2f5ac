"""The private files of one process: what is too long or too secret for a command line."""

import os
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..model.options import SessionOptions
from ..processes.leftovers import scratch_directory
from .argv import Command, Opening, build_command


def prepare_command(
    options: SessionOptions,
    opening: Opening,
    mark: str,
    *,
    budget: float | None = None,
    rules: Mapping[str, Sequence[str]] | None = None,
    left_out: Sequence[Mapping[str, Any]] = (),
) -> tuple[Command, Path | None]:
    """The command with its files written, and the directory that holds them; None when it needs none. Blocks."""
    build = partial(build_command, options, opening, budget=budget, rules=rules, left_out=left_out)
    command = build(Path())
    if not command.files:
        return command, None
    directory = scratch_directory(mark)
    try:
        command = build(directory)
        for path, content in command.files.items():
            _write_private(path, content)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return command, directory


def _write_private(path: Path, content: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content.encode("utf-8", "replace"))
