"""Our own file of servers: changed by one at a time, written whole, readable by its owner alone."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...errors import InvalidArgument
from ...private_files import FILE, private_directory

_KEY = "mcpServers"
Entries = dict[str, Any]


@contextmanager
def changing(file: Path) -> Iterator[Entries]:
    """The entries of the file, to be changed; written when the block ends well. All else in the file is kept."""
    from filelock import FileLock  # noqa: PLC0415 - only changes need it

    file = file.resolve()  # a link to a file kept elsewhere stays a link
    try:
        private_directory(file.parent)
        with FileLock(f"{file}.lock", mode=FILE):
            content = _read(file)
            entries = content.setdefault(_KEY, {})
            if not isinstance(entries, dict):
                raise InvalidArgument(f"{file}: {_KEY} must be an object; it was left as it is.")
            yield entries
            _write(file, content)
    except OSError as error:
        raise InvalidArgument(f"{file} cannot be changed: {error.strerror or error}.") from None


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8") or "{}")
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise InvalidArgument(f"{file} cannot be read: {error}; it was left as it is.") from None
    if not isinstance(content, dict):
        raise InvalidArgument(f"{file} must hold an object; it was left as it is.")
    return content


def _write(file: Path, content: dict[str, Any]) -> None:
    descriptor, new = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")  # born with mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
            out.flush()
            os.fsync(out.fileno())
        os.replace(new, file)
    except BaseException:
        os.unlink(new)
        raise
