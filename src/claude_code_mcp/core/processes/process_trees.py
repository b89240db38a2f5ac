"""Pauses, resumes and kills processes with all their descendants."""

import contextlib
import os
from collections.abc import Collection, Iterable
from typing import Literal

_MAX_ROUNDS = 100
"""Maximum generations of a process tree; only something that starts processes faster than they are found exceeds it."""


def pause_trees(pids: Collection[int]) -> None:
    """Suspends these children and all their descendants."""
    _each_in_trees(pids, "suspend")


def resume_trees(pids: Collection[int]) -> None:
    """Resumes these children and all their descendants."""
    _each_in_trees(pids, "resume")


def kill_trees(pids: Collection[int]) -> None:
    """Kills them at once, whether suspended or not."""
    import psutil  # noqa: PLC0415

    # Suspended first, so that they start nothing new, and collected before their parents end.
    for pid in _each_in_trees(pids, "suspend"):
        with contextlib.suppress(psutil.Error):
            psutil.Process(pid).kill()


def _each_in_trees(pids: Collection[int], act: Literal["suspend", "resume"]) -> set[int]:
    """Applies an action to all of them and returns those found. Trees are walked from the top, with the roots suspended
    first, so that nothing new starts and the walk ends. Processes of a container belong to its engine and are not
    reached."""
    import psutil  # noqa: PLC0415

    if not pids:
        return set()
    seen = set[int]()
    # A supervised child has a reaper above it, whose children are the child and every orphan below it.
    reapers = {parent for pid in pids if (parent := _parent(pid)) not in (None, os.getpid())}
    generation = {*pids, *_children(reapers)}
    for _ in range(_MAX_ROUNDS):
        for pid in generation:
            with contextlib.suppress(psutil.Error):  # it has just ended, or is another user's
                getattr(psutil.Process(pid), act)()
        seen |= generation
        generation = set(_children(seen)) - seen
        if not generation:
            break
    return seen


def _parent(pid: int) -> int | None:
    import psutil  # noqa: PLC0415

    try:
        return int(psutil.Process(pid).ppid())
    except psutil.Error:
        return None


def _children(parents: Collection[int | None]) -> Iterable[int]:
    """Reads the process list once for any number of parents."""
    import psutil  # noqa: PLC0415

    if not parents:
        return []
    return [process.pid for process in psutil.process_iter(["ppid"]) if process.info["ppid"] in parents]
