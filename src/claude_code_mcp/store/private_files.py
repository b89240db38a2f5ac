"""Small files that only their owner may read, replaced as a whole. Blocks on the disk."""

import contextlib
import os
import uuid
from pathlib import Path

TEMPORARY = ".tmp"
"""How the name of a file ends that is still being written; one that is old was left by a crash."""


def make_private_directory(path: Path) -> None:
    """Makes the directory and what is missing above it, for the owner alone whatever the umask is."""
    missing = [path, *path.parents]
    for directory in reversed(missing[: next((i for i, one in enumerate(missing) if one.exists()), len(missing))]):
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)


def replace_file(path: Path, content: bytes) -> None:
    """Gives the file this content, durably. Whoever reads it meanwhile, or after a crash, has the old or the new one.

    The mode is 0600 whatever the umask is. On failure (OSError) the old file is untouched and nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    """Makes a rename durable, where directories can be opened at all."""
    if os.name == "nt":
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
