"""The system calls that a sandboxed program may use, as a kernel filter (seccomp). Pure.

A closed list, like the ones of container engines: the calls that Linux had when this was written, without those below.
Later calls are unavailable in a sandbox until they are added here.

Refused (EPERM):

- taking a descriptor from another process, reading or writing its memory, or attaching to it. The processes of a
  sandbox run as one user, so a command could otherwise pose as the program that started it. Debugging a program that
  the debugger starts itself still works;
- kernel keys, which belong to the user and not to the sandbox;
- calls for administrators, and kernel interfaces with a history of vulnerabilities: modules, BPF, performance
  counters, mounts and namespaces (unless the sandbox may create others inside of it);
- sockets other than Unix, IP and netlink ones: a socket to the host of a virtual machine passes every namespace.

io_uring and `clone3` report ENOSYS, so that programs use calls that can be judged by their arguments. Calls by the
convention of another architecture have other numbers: a 32-bit program is killed at its first call, and x32 is
unavailable. There are filters for x86-64 and 64-bit ARM.
"""

import errno
import struct
from collections.abc import Mapping
from dataclasses import dataclass

_REFUSED: Mapping[str, tuple[int, int | None]] = {
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "memfd_secret": (447, 447),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "open_by_handle_at": (304, 265),
    "lookup_dcookie": (212, 18),
    "fanotify_init": (300, 262),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "create_module": (174, None),
    "get_kernel_syms": (177, None),
    "query_module": (178, None),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    "nfsservctl": (180, 42),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "_sysctl": (156, None),
    "ioperm": (173, None),
    "iopl": (172, None),
}
"""By name, the numbers on x86-64 and ARM; None if the call does not exist there."""
_NAMESPACES: Mapping[str, tuple[int, int | None]] = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
}
_ABSENT = (425, 426, 427, 435)
"""io_uring_setup, io_uring_enter, io_uring_register and clone3, on both."""
_LAST = 466
"""The newest known call (removexattrat, Linux 6.13)."""
_FIRST_COMMON = 424
"""From this number on, calls have the same number on all architectures."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """The kernel's identifier of an architecture, and its numbers for system calls."""

    name: int
    ptrace: int
    clone: int
    socket: int
    last: int
    """The last call before the common numbers."""
    refused: Mapping[str, int]
    namespaces: Mapping[str, int]
    other_abi: int | None = None
    """The first number of another calling convention (x32)."""


def _numbers(calls: Mapping[str, tuple[int, int | None]], column: int) -> dict[str, int]:
    return {name: number for name, numbers in calls.items() if (number := numbers[column]) is not None}


ARCHITECTURES: Mapping[str, Architecture] = {
    "x86_64": Architecture(
        0xC000003E, 101, 56, 41, 334, _numbers(_REFUSED, 0), _numbers(_NAMESPACES, 0), other_abi=0x40000000
    ),
    "aarch64": Architecture(0xC00000B7, 117, 220, 198, 294, _numbers(_REFUSED, 1), _numbers(_NAMESPACES, 1)),
}
"""By the machine name that `uname` reports."""
_ATTACHING = (16, 0x4206)
"""The `ptrace` requests that attach to a running program: PTRACE_ATTACH and PTRACE_SEIZE."""
_NEW_NAMESPACES = 0x7E020000
"""The flags of `clone` that create namespaces."""
_FAMILIES = (1, 2, 10, 16)
"""Socket families: Unix, IPv4, IPv6 and netlink, which lists network interfaces."""

# Instructions of the kernel's packet filter, and the offsets of the values that they check.
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_NOT_PERMITTED, _UNKNOWN, _NO_FAMILY = _ERROR | errno.EPERM, _ERROR | errno.ENOSYS, _ERROR | errno.EAFNOSUPPORT

Instruction = tuple[int, int, int, int]


def filter_program(machine: str, *, nested: bool = False) -> bytes | None:
    """The filter for this architecture in bubblewrap's format; None if there is none. `nested` is for a sandbox that
    may create others."""
    architecture = ARCHITECTURES.get(machine)
    if architecture is None:
        return None
    # The architecture is checked first: the same number is another call on another architecture.
    instructions = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, architecture.name),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if architecture.other_abi is not None:
        instructions += _if(_JUMP_AT_LEAST, architecture.other_abi, _UNKNOWN)
    instructions += _if(_JUMP_AT_LEAST, _LAST + 1, _UNKNOWN)
    # No architecture has calls between its own numbers and the common ones.
    instructions += [
        (_JUMP_AT_LEAST, 2, 0, _FIRST_COMMON),
        (_JUMP_AT_LEAST, 0, 1, architecture.last + 1),
        (_RETURN, 0, 0, _UNKNOWN),
    ]
    refused = {**architecture.refused, **({} if nested else architecture.namespaces)}
    for number in sorted(refused.values()):
        instructions += _if(_JUMP_EQUAL, number, _NOT_PERMITTED)
    for number in _ABSENT if not nested else _ABSENT[:3]:
        instructions += _if(_JUMP_EQUAL, number, _UNKNOWN)
    attaching = [part for request in _ATTACHING for part in _if(_JUMP_EQUAL, request, _NOT_PERMITTED)]
    instructions += _judge(architecture.ptrace, [*attaching, (_RETURN, 0, 0, _ALLOW)])
    families = [part for family in _FAMILIES for part in _if(_JUMP_EQUAL, family, _ALLOW)]
    instructions += _judge(architecture.socket, [*families, (_RETURN, 0, 0, _NO_FAMILY)])
    if not nested:
        flags = _if(_JUMP_ANY_BIT, _NEW_NAMESPACES, _NOT_PERMITTED)
        instructions += _judge(architecture.clone, [*flags, (_RETURN, 0, 0, _ALLOW)])
    instructions.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in instructions)


def _if(jump: int, value: int, verdict: int) -> list[Instruction]:
    """Ends with a verdict if the comparison holds."""
    return [(jump, 0, 1, value), (_RETURN, 0, 0, verdict)]


def _judge(number: int, by_argument: list[Instruction]) -> list[Instruction]:
    """Judges a call by the lower half of its first argument: the architectures are little-endian and the values
    small."""
    body = [(_LOAD, 0, 0, _FIRST_ARGUMENT), *by_argument]
    return [(_JUMP_EQUAL, 0, len(body), number), *body]
