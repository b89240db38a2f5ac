"""The stacks of all threads and of all asyncio tasks of this process, as text."""

import asyncio
import gc
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

_INNER = ("cr_await", "gi_yieldfrom", "ag_await")
"""Where a coroutine, a generator and an asynchronous generator keep what they wait for."""
_FRAME = ("cr_frame", "gi_frame", "ag_frame")


def every_stack() -> str:
    """Every thread and every unfinished task, each with its stack, the outermost call first. Works in any thread."""
    return "\n".join([*_thread_stacks(), *_task_stacks()])


def thread_stack(thread: threading.Thread) -> str:
    """The stack of one thread; empty if it has ended."""
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)) if frame is not None else ""


def _thread_stacks() -> Iterator[str]:
    threads = {thread.ident: thread for thread in threading.enumerate()}
    for identifier, frame in sys._current_frames().items():
        thread = threads.get(identifier)
        kind = "unknown" if thread is None else f"{thread.name!r}{', daemon' if thread.daemon else ''}"
        yield f"Thread {kind} ({identifier}):\n{''.join(traceback.format_stack(frame))}"


def _task_stacks() -> Iterator[str]:
    """Tasks of every event loop: asyncio has a list of tasks for each loop, and no list of loops."""
    for task in [found for found in gc.get_objects() if issubclass(type(found), asyncio.Task)]:
        if not task.done():
            state = " (being cancelled)" if task.cancelling() else ""
            yield f"Task {task.get_name()!r}{state}, {task!r}:\n{''.join(_lines(_waiting_frames(task.get_coro())))}"


def _waiting_frames(awaited: Any) -> Iterator[FrameType]:
    """From the coroutine of a task to the innermost one that it waits for. `Task.get_stack` has the outermost alone."""
    while awaited is not None:
        frame = _first_attribute(awaited, _FRAME)
        if frame is not None:
            yield frame
            awaited = _first_attribute(awaited, _INNER)
        elif type(awaited).__name__.startswith("async_generator_"):  # a step of an asynchronous generator
            awaited = next((held for held in gc.get_referents(awaited) if hasattr(held, "ag_frame")), None)
        else:  # the future, or an object with its own __await__
            return


def _first_attribute(owner: Any, names: Iterable[str]) -> Any:
    return next((value for name in names if (value := getattr(owner, name, None)) is not None), None)


def _lines(frames: Iterable[FrameType]) -> list[str]:
    return traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames).format()
