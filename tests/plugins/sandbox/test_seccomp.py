"""The filter of system calls: its decisions for every architecture, by an interpreter of its instructions, and what the
kernel makes of it in a real sandbox."""

import asyncio
import errno
import os
import struct
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from claude_code_mcp.plugins.sandbox.bubblewrap import Mount
from claude_code_mcp.plugins.sandbox.system_calls import ARCHITECTURES, filter_program
from tests.support.bubblewrap import missing

from .test_bubblewrap import PYTHON, Place

ALLOW, KILL = "allow", "kill"
IO_URING, CLONE3 = (425, 426, 427), 435
PROBED = (
    *("pidfd_getfd", "kcmp", "process_vm_readv", "process_vm_writev", "keyctl", "add_key", "request_key", "ptrace"),
    *("unshare", "bpf", "userfaultfd"),
)
I386, ARM = 0x40000003, 0x40000028
ATTACH, SEIZE, TRACE_ME, CONTINUE = 16, 0x4206, 0, 7


def verdict(program: bytes, number: int, architecture: int, first: int = 0) -> str:
    """What the filter decides on a call, as the kernel runs it."""
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, architecture, 0, first, 0, 0, 0, 0, 0)
    instructions = [*struct.iter_unpack("<HBBI", program)]
    loaded, position = 0, 0
    while True:
        code, if_true, if_false, value = instructions[position]
        position += 1
        if code == 0x20:
            (loaded,) = struct.unpack_from("<I", data, value)
        elif code in (0x15, 0x35, 0x45):
            holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[code]
            position += if_true if holds else if_false
        elif code == 0x06:
            return {0x7FFF0000: ALLOW, 0x80000000: KILL}.get(value) or errno.errorcode[value & 0xFFFF]
        else:
            raise AssertionError(f"an instruction that is not expected: {code:#x}")


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_what_is_not_listed_is_refused_and_what_is_newer_does_not_exist(machine: str, nested: bool) -> None:
    program, architecture = filter_program(machine, nested=nested), ARCHITECTURES[machine]
    assert program is not None
    refused = {*architecture.refused.values(), *(() if nested else architecture.namespaces.values())}
    absent = {*IO_URING, *range(architecture.last + 1, 424), *range(467, 600), *(() if nested else [CLONE3])}
    for number in {*range(600)} - {architecture.socket}:
        expected = "EPERM" if number in refused else "ENOSYS" if number in absent else ALLOW
        assert verdict(program, number, architecture.name) == expected, number


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_processes_and_threads_are_made_and_no_namespaces(machine: str) -> None:
    program, architecture = filter_program(machine), ARCHITECTURES[machine]
    assert program is not None
    for flags in (17, 0x3D0F00, 0x4111):  # of fork, of a thread, of vfork
        assert verdict(program, architecture.clone, architecture.name, flags) == ALLOW
    for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(program, architecture.clone, architecture.name, 17 | flag) == "EPERM"


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_sockets_are_unix_ip_and_netlink_ones(machine: str) -> None:
    program, architecture = filter_program(machine), ARCHITECTURES[machine]
    assert program is not None
    allowed = [one for one in range(64) if verdict(program, architecture.socket, architecture.name, one) == ALLOW]
    assert allowed == [1, 2, 10, 16]


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_a_program_can_be_debugged_that_is_started_for_it_and_no_other(machine: str) -> None:
    program, architecture = filter_program(machine), ARCHITECTURES[machine]
    assert program is not None
    decided = {
        request: verdict(program, architecture.ptrace, architecture.name, request)
        for request in (ATTACH, SEIZE, TRACE_ME, CONTINUE)
    }
    assert decided == {ATTACH: "EPERM", SEIZE: "EPERM", TRACE_ME: ALLOW, CONTINUE: ALLOW}


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_calls_of_other_architectures_do_not_pass_under_other_numbers(machine: str) -> None:
    program, architecture = filter_program(machine), ARCHITECTURES[machine]
    assert program is not None
    for other in (I386, ARM, *(each.name for each in ARCHITECTURES.values())):
        for number in (26, 101, 347, 438):
            if other != architecture.name:
                assert verdict(program, number, other) == KILL
    if architecture.other_abi is not None:
        for number in (0, 521, 540, 438):
            assert verdict(program, architecture.other_abi | number, architecture.name) == "ENOSYS"


def test_where_there_is_no_filter_none_is_made() -> None:
    assert filter_program("riscv64") is None


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    yield place
    await asyncio.gather(*(child.stop(0.5) for child in place.children))


PROBE = """
import atexit, ctypes, os, subprocess
libc = ctypes.CDLL(None, use_errno=True)
numbers = {numbers}
sleeper = subprocess.Popen(["sleep", "600"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
atexit.register(os.kill, sleeper.pid, 9)
pidfd = os.pidfd_open(sleeper.pid)
buffer = ctypes.create_string_buffer(64)
vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 64)
first = int(open(f"/proc/{{sleeper.pid}}/maps").readline().split("-")[0], 16)
remote = (ctypes.c_size_t * 2)(first, 64)
calls = {{
    "pidfd_getfd": (pidfd, 0, 0),
    "kcmp": (os.getpid(), sleeper.pid, 0, 0, 0),
    "process_vm_readv": (sleeper.pid, vector, 1, remote, 1, 0),
    "process_vm_writev": (sleeper.pid, vector, 1, remote, 1, 0),
    "keyctl": (0, -4, 0),
    "add_key": (b"user", b"name", b"value", 5, -4),
    "request_key": (b"user", b"name", None, -4),
    "ptrace": (16, sleeper.pid, 0, 0),
    "unshare": (0x10000000,),
    "bpf": (0, 0, 0),
    "userfaultfd": (0,),
}}
for name, arguments in calls.items():
    ctypes.set_errno(0)
    result = libc.syscall(numbers[name], *arguments)
    print(name, "refused" if result == -1 and ctypes.get_errno() == 1 else f"{{result}} {{ctypes.get_errno()}}")
"""


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.skipif(os.uname().machine not in ARCHITECTURES, reason="there is no filter for this machine")
async def test_the_kernel_refuses_them_in_a_sandbox_and_not_outside(place: Place) -> None:
    architecture = ARCHITECTURES[os.uname().machine]
    numbers = {**architecture.refused, **architecture.namespaces, "ptrace": architecture.ptrace}
    numbers = {name: numbers[name] for name in PROBED}
    (place.given / "probe.py").write_text(PROBE.format(numbers=numbers))
    _, said = await place.run(f"{PYTHON} -IS probe.py", Mount.at(sys.base_prefix))
    assert {*said.splitlines()} == {f"{name} refused" for name in numbers}
    outside = await asyncio.create_subprocess_exec(
        sys.executable, str(place.given / "probe.py"), stdout=asyncio.subprocess.PIPE
    )
    written, _ = await outside.communicate()
    assert b"pidfd_getfd refused" not in written  # so it is the filter that refuses


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the way of calling is that of x86")
async def test_32_bit_system_call_kills_the_program(place: Place) -> None:
    code = (
        "import ctypes, mmap; m = mmap.mmap(-1, 4096, prot=7); "
        "m.write(bytes.fromhex('b814000000cd80c3')); "  # mov eax, 20 (getpid); int 0x80; ret
        "print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))())"
    )
    (place.given / "probe.py").write_text(code)
    exit_, said = await place.run(f"{PYTHON} -IS probe.py; echo $?", Mount.at(sys.base_prefix))
    assert said.splitlines()[-1] in ("159", "139")  # SIGSYS; SIGSEGV where the kernel has no such way at all
    assert exit_.code == 0
