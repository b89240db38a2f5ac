"""Stops the processes of children without ending them, lets them go on, or ends them at once: each with all that it has
started.

Trees are walked from the top, after their roots were stopped: what is stopped starts nothing, so that the walk ends.
One look at the processes of the machine serves any number of trees. A container's processes are those of its engine,
and are not reached.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Iterable

import psutil

_MOST_ROUNDS = 100
"""Generations of a tree; more are made only by something that starts processes faster than they are found."""


def pause(pids: Collection[int]) -> None:
    """Stops these children and everything that they have started."""
    _each(pids, psutil.Process.suspend)


def resume(pids: Collection[int]) -> None:
    """Lets them go on."""
    _each(pids, psutil.Process.resume)


def kill(pids: Collection[int]) -> None:
    """Ends them at once, whether they are stopped or not."""
    # Stopped first, so that nothing new is started meanwhile, and found before their parents are gone.
    for pid in _each(pids, psutil.Process.suspend):
        with contextlib.suppress(psutil.Error):
            psutil.Process(pid).kill()


def _each(pids: Collection[int], act: Callable[[psutil.Process], None]) -> set[int]:
    """Does this to all of them; returns those that were found."""
    if not pids:
        return set()
    seen = set[int]()
    # A supervised child has a keeper of its own above it, whose children are the child and every orphan below it.
    keepers = {parent for pid in pids if (parent := _parent(pid)) not in (None, os.getpid())}
    generation = {*pids, *_children(keepers)}
    for _ in range(_MOST_ROUNDS):
        for pid in generation:
            with contextlib.suppress(psutil.Error):  # it has just ended, or is another user's
                act(psutil.Process(pid))
        seen |= generation
        generation = set(_children(seen)) - seen
        if not generation:
            break
    return seen


def _parent(pid: int) -> int | None:
    try:
        return int(psutil.Process(pid).ppid())
    except psutil.Error:
        return None


def _children(parents: Collection[int | None]) -> Iterable[int]:
    if not parents:
        return []
    return [process.pid for process in psutil.process_iter(["ppid"]) if process.info["ppid"] in parents]
