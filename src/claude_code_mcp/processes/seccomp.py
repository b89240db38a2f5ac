"""The system calls that a sandboxed child cannot make, as a filter that the kernel applies to it and all it starts.

The processes of a sandbox run as one user, and each could take a descriptor of another one or write to its memory: a
command of a session those of the program that started it, and so speak in its name. No program of the sandbox needs
that. What is refused:

- to take a descriptor from another process, or to compare its own with those of one;
- to read or write the memory of another process. Debugging a program that is started for it still works, attaching to
  one that runs does not;
- the kernel's keys: they belong to the user and not to the sandbox.

Calls in the way of another architecture have other numbers: a program for 32 bits is killed at its first one, and the
calls of x32 do not exist. A filter exists for x86-64 and for ARM with 64 bits; elsewhere `filter_program` has none.
"""

import errno
import struct
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Architecture:
    """How the kernel calls an architecture, and its numbers for system calls."""

    name: int
    calls: Mapping[str, int]
    other_abi: int | None = None
    """From which number on calls belong to another way of calling."""


_PTRACE = "ptrace"
REFUSED = ("pidfd_getfd", "kcmp", "process_vm_readv", "process_vm_writev", "add_key", "request_key", "keyctl")
"""Refused whatever their arguments are."""


def _numbers(ptrace: int, *refused: int) -> Mapping[str, int]:
    return {_PTRACE: ptrace, **dict(zip(REFUSED, refused, strict=True))}


ARCHITECTURES: Mapping[str, Architecture] = {
    "x86_64": Architecture(0xC000003E, _numbers(101, 438, 312, 310, 311, 248, 249, 250), other_abi=0x40000000),
    "aarch64": Architecture(0xC00000B7, _numbers(117, 438, 272, 270, 271, 217, 218, 219)),
}
"""By the name that `uname` has for the machine."""
_ATTACHING = (16, 0x4206)
"""The requests of `ptrace` that begin with a program that runs: PTRACE_ATTACH and PTRACE_SEIZE."""

# Instructions of the kernel's packet filter, and where they find what they judge.
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_REFUSED, _UNKNOWN = _ERROR | errno.EPERM, _ERROR | errno.ENOSYS


def filter_program(machine: str) -> bytes | None:
    """The filter for this kind of machine, as bubblewrap takes it; None if there is none."""
    architecture = ARCHITECTURES.get(machine)
    if architecture is None:
        return None
    instructions = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        *_otherwise(_JUMP_EQUAL, architecture.name, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if architecture.other_abi is not None:
        instructions += _if(_JUMP_AT_LEAST, architecture.other_abi, _UNKNOWN)
    for name in REFUSED:
        instructions += _if(_JUMP_EQUAL, architecture.calls[name], _REFUSED)
    instructions += [
        *_otherwise(_JUMP_EQUAL, architecture.calls[_PTRACE], _ALLOW),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),  # its lower half: the machines are little-endian, and requests are small
    ]
    for request in _ATTACHING:
        instructions += _if(_JUMP_EQUAL, request, _REFUSED)
    instructions.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in instructions)


def _if(jump: int, value: int, verdict: int) -> list[tuple[int, int, int, int]]:
    """Ends with a verdict where the comparison holds."""
    return [(jump, 0, 1, value), (_RETURN, 0, 0, verdict)]


def _otherwise(jump: int, value: int, verdict: int) -> list[tuple[int, int, int, int]]:
    """Ends with a verdict where the comparison does not hold."""
    return [(jump, 1, 0, value), (_RETURN, 0, 0, verdict)]
