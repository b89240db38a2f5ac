"""A sandbox for a child on Linux: the child's view, and bubblewrap around its command.

A `SandboxView` does not say how it is enforced: `bubblewrap.py` and `container.py` each turn it into a command line.

Guarantees for a sandboxed child and everything that it starts:

- It sees the system directories (read-only), the mounts of its view, and its own `/tmp`. Paths are the same inside and
  outside. Directories that exist only because a mount is below them are read-only, so that nothing can be created next
  to a mount and no mount can be moved away.
- It sees no other process: neither the server, whose memory and environment it could otherwise read, nor a sibling.
- It cannot take a descriptor from another process or attach to one, and has a closed list of system calls
  (`system_calls.py`).
- It has no capabilities, even if the server runs as root, and cannot change kernel settings. It cannot write to /proc,
  including the memory of its own processes, unless the view is `nested`.
- It ends when bubblewrap's own process ends, which the supervisor starts and ends like any other child.

Not guaranteed: with the host's network it reaches everything that listens on loopback and on abstract sockets.

SIGTERM reaches only the child: bubblewrap ignores it and ends with the child. `unavailable` says why bubblewrap cannot
be used; nothing here falls back to running without it.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from ...core.isolation import IsolatedCommand
from ...core.processes.environment import DEPTH, MARK
from ...core.processes.limits import NO_LIMITS, ResourceLimits, process_limit_command
from .system_calls import filter_program


@dataclass(frozen=True, slots=True)
class Mount:
    """One path that a child sees."""

    target: str
    """Its path inside. All directories above it exist for the child too, otherwise empty."""
    source: str | int | None
    """A path; a descriptor, which cannot be exchanged for another place after it was checked; or None for an empty
    in-memory directory that disappears with the child."""
    writable: bool = False

    @classmethod
    def at(cls, path: str, *, writable: bool = False) -> "Mount":
        """A path that is the same inside and outside."""
        return cls(path, path, writable)


@dataclass(frozen=True, slots=True)
class SandboxView:
    """Everything that a child sees in addition to the system's programs."""

    mounts: tuple[Mount, ...]
    """Of two mounts with the same target the later one counts. A missing source is skipped."""
    cwd: str
    environment: Mapping[str, str] = field(default_factory=dict)
    network: bool = True
    """Whether it has the host's network or none."""
    limits: ResourceLimits = NO_LIMITS
    """Its resource limits, as far as they are enforced inside."""
    nested: bool = False
    """Whether it may create nested sandboxes. Then it can write to /proc, and so into the memory of its siblings."""

    def in_order(self) -> Iterator[Mount]:
        """The existing mounts, each directory before its contents."""
        by_target = {mount.target: mount for mount in self.mounts if _exists(mount)}
        # A directory that is mounted after a path inside it would hide that path.
        return iter(sorted(by_target.values(), key=lambda mount: len(Path(mount.target).parts)))


def _exists(mount: Mount) -> bool:
    return not isinstance(mount.source, str) or os.path.exists(mount.source)


_PROGRAM = "bwrap"
_IGNORING_TERM = ("/bin/sh", "-c", 'trap "" TERM; exec "$@"', "sh")
"""Makes bubblewrap ignore SIGTERM, which `exec` preserves."""
_PROBE_SECONDS = 20.0
_IN_MEMORY = 256 << 20
"""Size limit of an in-memory directory, in bytes."""
_NEEDED = "--bind-fd"
"""An option without which a directory could be exchanged between the check and the mount. Bubblewrap 0.10 has it, and
so do older versions with the fixes of most distributions."""

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store", "/gnu/store")
_ETC = (
    *("alternatives", "crypto-policies", "gitconfig", "group", "hosts", "ld.so.cache", "localtime", "nsswitch.conf"),
    *("os-release", "passwd", "pki/ca-trust", "pki/tls/certs", "resolv.conf", "services", "ssl/certs"),
    "ssl/openssl.cnf",
)
"""The files of /etc that programs need: others contain keys and passwords, and each mount costs time."""
_ETC_PREFIXES = ("java-",)
_PROC_READ_ONLY = ("bus", "fs", "irq", "sys", "sysrq-trigger")
"""Parts of /proc through which root could change the kernel even without a capability."""
_PROC_HIDDEN = ("acpi", "kcore", "keys", "scsi", "timer_list")


def unavailable(environment: Mapping[str, str]) -> str | None:
    """Why sandboxes are unavailable, in one line; None if they work. Runs one to find out. Blocks."""
    program = _program(environment)
    if program is None:
        return "bubblewrap runs on Linux only" if sys.platform != "linux" else "bubblewrap (bwrap) is not installed"
    try:
        # The program alone proves little: the kernel or a surrounding container may forbid namespaces, and only a run
        # shows that.
        command = [program, *_arguments(SandboxView((Mount("/tmp", None),), "/"), program), "--", "/bin/sh", "-c", ":"]  # noqa: S108
        done = _run(command)
    except (OSError, subprocess.SubprocessError) as error:
        return f"bubblewrap does not run: {error}"
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return f"bubblewrap does not work: {lines[-1] if lines else f'it exited with code {done.returncode}'}"
    return None if _NEEDED in _help_text(program) else f"bubblewrap is too old: it does not support {_NEEDED}"


def isolate(view: SandboxView, argv: Sequence[str], scratch: Path, environment: Mapping[str, str]) -> IsolatedCommand:
    """The command that runs `argv` with this view. `argv[0]` is a path. `scratch` is a private directory of the child,
    which will contain its `/tmp`. The command takes over the view's descriptors. Raises OSError if the scratch
    directory cannot be written or `environment` has no bubblewrap; then the caller keeps the descriptors. Blocks on the
    disk."""
    program = _program(environment)
    if program is None:
        raise FileNotFoundError(2, "bubblewrap is not installed", _PROGRAM)
    temporary = scratch / "tmp"
    temporary.mkdir(mode=0o700)
    arguments = [*_arguments(view, program, str(temporary)), "--chdir", view.cwd]
    calls = filter_program(os.uname().machine, nested=view.nested)
    files = []
    if calls is not None:
        files.append(_nameless(calls))
        arguments += ["--seccomp", str(files[0])]
    # Neither the view nor any of its values appears in the process list or on the disk.
    files.append(_nameless(b"\0".join(os.fsencode(argument) for argument in arguments) + b"\0"))
    if view.limits.processes is not None and os.geteuid() != 0:  # the kernel does not count root's processes
        argv = process_limit_command(view.limits.processes, argv)
    command = [*_IGNORING_TERM, program, "--args", str(files[-1]), "--", *argv]
    directories = (mount.source for mount in view.mounts if isinstance(mount.source, int))
    # A caller's variables must not reach bubblewrap itself, which runs outside of the sandbox: LD_PRELOAD, for example.
    outside = {name: view.environment[name] for name in (MARK, DEPTH) if name in view.environment}
    return IsolatedCommand(command, outside, (*files, *directories))


def _nameless(content: bytes) -> int:
    """A descriptor of an anonymous in-memory file."""
    descriptor = os.memfd_create("bubblewrap")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _run(command: Sequence[str]) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        command, env={}, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_SECONDS, check=False
    )


def _program(environment: Mapping[str, str]) -> str | None:
    found = shutil.which(_PROGRAM, path=environment.get("PATH", os.defpath)) if sys.platform == "linux" else None
    return os.path.abspath(found) if found else None


@lru_cache(maxsize=8)
def _help_text(program: str) -> str:
    done = _run([program, "--help"])
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def _arguments(view: SandboxView, program: str, temporary: str | None = None) -> list[str]:
    arguments = [*_namespaces(network=view.network), *_system(nested=view.nested)]
    if temporary is not None:
        # Not by a link: bubblewrap would resolve mounts below a link outside of the sandbox.
        arguments += ["--bind", temporary, "/tmp", "--bind", temporary, "/var/tmp"]  # noqa: S108
    size = ["--size", str(_IN_MEMORY)] if "--size" in _help_text(program) else []
    for mount in (Mount("/dev/shm", None), *view.in_order()):  # noqa: S108
        arguments += _mounted(mount, size)
    for name, value in view.environment.items():
        arguments += ["--setenv", name, value]
    # These two come last: the mount points are created in the directories that they make read-only. The directories
    # between the mounts exist only for the mounts.
    return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/"]


def _mounted(mount: Mount, size: Sequence[str]) -> list[str]:
    kind = "--bind" if mount.writable else "--ro-bind"
    if mount.source is None:
        return [*size, "--tmpfs", mount.target]
    if isinstance(mount.source, int):
        return [f"{kind}-fd", str(mount.source), mount.target]
    return [kind, mount.source, mount.target]


def _namespaces(*, network: bool) -> list[str]:
    # A separate user namespace counts processes separately. Root needs none and has no such limit.
    user = [] if os.geteuid() == 0 else ["--unshare-user"]
    kinds = [*user, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    return [*kinds, *([] if network else ["--unshare-net"]), "--die-with-parent", "--cap-drop", "ALL"]


def _system(*, nested: bool) -> list[str]:
    """The operating system's directories, read-only, and the sandbox's own /proc and /dev."""
    arguments: list[str] = []
    for path in _SYSTEM:
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            arguments += ["--ro-bind", path, path]
    for path in _etc():
        real = os.path.realpath(path)
        linked = real.startswith("/usr/") and os.path.islink(path)
        arguments += ["--symlink", real, path] if linked else ["--ro-bind", real, path]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--dir", "/run"]
    for name in _PROC_HIDDEN:
        arguments += _covered(f"/proc/{name}")
    if not nested:
        return [*arguments, "--remount-ro", "/proc"]
    for name in _PROC_READ_ONLY:
        arguments += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    return arguments


def _etc() -> Iterator[str]:
    try:
        names = os.listdir("/etc")
    except OSError:
        names = []
    wanted = [*_ETC, *(name for name in names if name.startswith(_ETC_PREFIXES))]
    return (path for name in wanted if os.path.exists(path := f"/etc/{name}"))


def _covered(path: str) -> list[str]:
    if os.path.isdir(path):
        return ["--tmpfs", path, "--remount-ro", path]
    return ["--ro-bind", os.devnull, path] if os.path.exists(path) else []
