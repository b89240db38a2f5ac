"""Standard output that any terminal and any pipe can take.

A terminal that is not UTF-8 must not turn a character into a traceback, and a reader that leaves early, as `| head`
does, is no error.
"""

import io
import json
import os
import sys
from codecs import register_error
from collections.abc import Callable

_ESCAPE = "claude_code_mcp_escape"


def run_with_output(command: Callable[[], int]) -> int:
    """Runs a command and returns its exit code; 0 if the reader of its output leaves.

    What the encoding of a stream lacks is escaped. Output is flushed before this returns: when the interpreter ends it
    would be too late to handle the error. A BrokenPipeError counts also where task groups have wrapped it.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ESCAPE)
    try:
        try:
            return command()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except (BrokenPipeError, BaseExceptionGroup) as error:
        if _other_than_broken_pipe(error):
            raise
        _discard_output()
        return 0


def _escaped(error: UnicodeError) -> tuple[str, int]:
    r"""The characters as JSON writes them (`\u2026`), so that JSON stays the JSON that it was."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


register_error(_ESCAPE, _escaped)


def _other_than_broken_pipe(error: BaseException) -> bool:
    return isinstance(error, BaseExceptionGroup) and error.split(BrokenPipeError)[1] is not None


def _discard_output() -> None:
    """What is still buffered goes nowhere; the interpreter flushes it once more when it ends."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.close(devnull)
