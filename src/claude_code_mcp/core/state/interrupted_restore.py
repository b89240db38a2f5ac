"""Undoes a `restore` that was killed half way.

The next process that opens the state undoes it. A restore replaces the directory in two steps, and between them the
directory is missing. Before the first step it writes a note next to the directory with the location of the old state.
While it runs it holds a lock, and opening the state is refused. After the second step the restored state is in force,
whether or not the note still exists.
"""

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ..errors import StateUnavailable
from ..private_files import FILE, replace_file

log = logging.getLogger(__name__)


def _note_of(state_dir: Path) -> Path:
    return state_dir.with_name(f".{state_dir.name}.restoring")


@contextlib.contextmanager
def exchanging(state_dir: Path, made: Path, aside: Path | None) -> Iterator[None]:
    """Within this context a state directory is moved `aside` and the new one (`made`) takes its place. If the process
    is killed within, the next one restores the old directory."""
    from filelock import FileLock  # noqa: PLC0415 - takes a while, and hardly anybody needs it

    note = _note_of(state_dir)
    with FileLock(f"{note}.lock", mode=FILE):
        text = json.dumps({"made": str(made), "aside": str(aside) if aside is not None else None})
        # On the disk before the first step: without the note, the purpose of the directories would be unknown.
        replace_file(note, text.encode())
        yield
        note.unlink()


def undo_interrupted_restore(state_dir: Path) -> None:
    """Restores what a killed restore moved aside, and removes its new files. Raises StateUnavailable while a restore
    runs. Only checks one file if there was none."""
    note = _note_of(state_dir)
    if not note.exists():
        return
    from filelock import FileLock, Timeout  # noqa: PLC0415

    try:
        with FileLock(f"{note}.lock", mode=FILE, timeout=0):
            # Another process may have undone it before this one got the lock.
            if note.exists():
                _undo(state_dir, json.loads(note.read_bytes()))
                note.unlink()
    except Timeout:
        raise StateUnavailable(f"The state in {state_dir} is being restored now. Try again in a moment.") from None
    except ValueError:
        raise StateUnavailable(
            f"A restore of {state_dir} was interrupted, and {note} does not say what it had moved. Move the newest "
            f"{state_dir}.before-… directory back, then remove {note}."
        ) from None


def _undo(state_dir: Path, note: dict[str, str | None]) -> None:
    made, aside = note["made"], note["aside"]
    if aside is not None and not state_dir.exists() and os.path.isdir(aside):
        os.rename(aside, state_dir)
        log.warning("a restore was interrupted: the previous state is back in %s", state_dir)
    if made is not None:
        # The temporary directory that it was made in, which the killed restore did not remove.
        shutil.rmtree(Path(made).parent, ignore_errors=True)
