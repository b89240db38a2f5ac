"""Which files a program needs to start, for `ChildOptions.executables`.

The kernel (Landlock, Linux 5.19 and later) then refuses every other program to the child and its descendants, including
programs that an unchecked configuration names.
"""

import os
import struct

_HEADER = struct.Struct("<4sBB10x HHIQQQIHHH")
_SEGMENT = struct.Struct("<IIQQQQ")
_INTERPRETER = 3
_MAX_SEGMENTS = 64


def needed_to_start(program: str) -> tuple[str, ...]:
    """The program and its loader; empty if unknown, for example for a script. Blocks on the disk."""
    program = os.path.realpath(program)
    try:
        with open(program, "rb") as file:
            header = _HEADER.unpack(file.read(_HEADER.size))
            magic, bits, order, segments, size, count = *header[:3], header[7], header[11], header[12]
            if (magic, bits, order) != (b"\x7fELF", 2, 1) or count > _MAX_SEGMENTS:
                return ()
            for number in range(count):
                file.seek(segments + number * size)
                kind, _, offset, _, _, length = _SEGMENT.unpack(file.read(_SEGMENT.size))
                if kind == _INTERPRETER:
                    file.seek(offset)
                    loader = os.fsdecode(file.read(min(length, 4096)).rstrip(b"\0"))
                    return (program, os.path.realpath(loader)) if os.path.isfile(loader) else ()
    except (OSError, struct.error):
        return ()
    return (program,)
