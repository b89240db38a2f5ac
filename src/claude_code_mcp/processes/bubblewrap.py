"""A sandbox for a child: bubblewrap around its command (Linux), so that it sees what it is given and nothing else.

What holds for a sandboxed child and everything that it starts:

- It sees the system directories (read-only), the directories of its `SandboxSpec`, and a `/tmp` of its own. Paths are
  the same inside and outside. `hidden` paths are covered even where they lie in a directory that it was given, and
  neither they nor a directory above them can be moved away.
- It sees no other process: neither the server, whose memory and environment it could read otherwise, nor a sibling.
- It has no capability, also where the server runs as root, and cannot change a setting of the kernel.
- It ends when bubblewrap's own process ends, which the supervisor starts and ends like any other child.

What does not: unless `network` is off it reaches the network of the host, with everything that listens on loopback and
on abstract sockets. There is no limit on memory, processor or disk.

SIGTERM is for the child alone: bubblewrap ignores it, and ends with the child. Where bubblewrap cannot be used,
`unavailable` says why; nothing here falls back to running without.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PROGRAM = "bwrap"
_SHELL = "/bin/sh"
_ENCLOSE = 'trap "" TERM; exec 3<"$0"; exec "$@"'
"""The shell opens the file of arguments for bubblewrap, and has it ignore SIGTERM, which `exec` keeps."""
_PROBE_SECONDS = 20.0

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store", "/gnu/store")
_ETC = (
    *("alternatives", "crypto-policies", "gitconfig", "group", "hosts", "ld.so.cache", "localtime", "nsswitch.conf"),
    *("os-release", "passwd", "pki/ca-trust", "pki/tls/certs", "resolv.conf", "services", "ssl/certs"),
    "ssl/openssl.cnf",
)
"""What programs need of /etc, and no more: other files there hold keys and passwords, and each mount costs time."""
_ETC_PREFIXES = ("java-",)
_PROC_READ_ONLY = ("bus", "fs", "irq", "sys", "sysrq-trigger")
"""Parts of /proc through which root could change the kernel even without a capability."""
_PROC_HIDDEN = ("acpi", "kcore", "keys", "scsi", "timer_list")


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a child sees beside the system. All paths are absolute; what does not exist is left out."""

    writable: tuple[str, ...] = ()
    """Directories and files that it may change."""
    readable: tuple[str, ...] = ()
    """Those that it may only read. Of a path inside another one, what is said of the inner one holds."""
    hidden: tuple[str, ...] = ()
    """Directories and files that it sees empty, whatever was said of those above them."""
    own: tuple[tuple[str, str], ...] = ()
    """Sources and the places where the child finds them, writable, in this order; stronger than `hidden`."""
    own_readable: tuple[tuple[str, str], ...] = ()
    """The same, after `own`, for what it may only read."""
    private: tuple[str, ...] = ()
    """Directories that are empty at its start and gone at its end; the strongest of all."""
    network: bool = True
    """Whether it has the network of the host, or none at all."""


def unavailable(environment: Mapping[str, str]) -> str | None:
    """Why there can be no sandbox here, in one line; None if there can. Really runs one. Blocks."""
    program = _program(environment)
    if program is None:
        return "bubblewrap runs on Linux only" if sys.platform != "linux" else "bubblewrap (bwrap) is not installed"
    command = [program, *_namespaces(network=True), *_system(), "--tmpfs", "/tmp", "--", "/bin/sh", "-c", ":"]  # noqa: S108
    try:
        done = subprocess.run(
            command,
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"bubblewrap does not run: {error}"
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return f"bubblewrap does not work: {lines[-1] if lines else f'it exited with code {done.returncode}'}"
    return None


def enclose(
    spec: SandboxSpec, argv: Sequence[str], cwd: str, scratch: Path, environment: Mapping[str, str]
) -> list[str]:
    """The command that runs `argv` in a sandbox, in the directory `cwd`. `argv[0]` is a path.

    `scratch` is a directory of the child's own: its `/tmp` is made there, and the file that keeps bubblewrap's
    arguments out of the process list. OSError if it cannot be written, or if there is no bubblewrap in `environment`.
    Blocks on the disk.
    """
    program = _program(environment)
    if program is None:
        raise FileNotFoundError(2, "bubblewrap is not installed", _PROGRAM)
    temporary = scratch / "tmp"
    temporary.mkdir(mode=0o700)
    arguments = [
        *_namespaces(network=spec.network),
        *_system(),
        *("--bind", str(temporary), "/tmp", "--symlink", "/tmp", "/var/tmp"),  # noqa: S108
        *_mounts(spec),
        *("--chdir", cwd),
    ]
    file = scratch / "sandbox"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as opened:
        opened.write(b"\0".join(os.fsencode(argument) for argument in arguments) + b"\0")
    return [_SHELL, "-c", _ENCLOSE, str(file), program, "--args", "3", "--", *argv]


def _program(environment: Mapping[str, str]) -> str | None:
    found = shutil.which(_PROGRAM, path=environment.get("PATH", os.defpath)) if sys.platform == "linux" else None
    return os.path.abspath(found) if found else None


def _namespaces(*, network: bool) -> list[str]:
    kinds = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    return [*kinds, *([] if network else ["--unshare-net"]), "--die-with-parent", "--cap-drop", "ALL"]


def _system() -> list[str]:
    """The directories of the operating system, read-only, and /proc and /dev of the sandbox itself."""
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
    for name in _PROC_READ_ONLY:
        arguments += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    for name in _PROC_HIDDEN:
        arguments += _covered(f"/proc/{name}")
    return arguments


def _etc() -> Iterator[str]:
    try:
        names = os.listdir("/etc")
    except OSError:
        names = []
    wanted = [*_ETC, *(name for name in names if name.startswith(_ETC_PREFIXES))]
    return (path for name in wanted if os.path.exists(path := f"/etc/{name}"))


def _mounts(spec: SandboxSpec) -> list[str]:
    mounts = {**dict.fromkeys(spec.readable, "--ro-bind"), **dict.fromkeys(spec.writable, "--bind")}
    arguments: list[str] = []
    for path in sorted(filter(os.path.exists, mounts), key=_depth):  # an inner one covers the one around it
        arguments += [mounts[path], path, path]
    arguments += _hiding(spec.hidden, mounts)
    for option, pairs in (("--bind", spec.own), ("--ro-bind", spec.own_readable)):
        for source, target in pairs:
            arguments += [option, source, target] if os.path.exists(source) else []
    for path in spec.private:
        arguments += ["--tmpfs", path]
    return arguments


def _hiding(hidden: Iterable[str], mounts: Mapping[str, str]) -> list[str]:
    """Covers what is hidden. Each directory above it, up to the one that was given, becomes a mount of its own: such a
    directory cannot be renamed, by which a child could bring the contents to light for the next one."""
    there = {path for path in hidden if os.path.exists(path)}
    outermost = [path for path in there if there.isdisjoint(map(str, Path(path).parents))]
    inside = {path: max(roots, key=_depth) for path in outermost if (roots := _roots_of(path, mounts))}
    arguments: list[str] = []
    for above in sorted({above for path, root in inside.items() for above in _between(path, root)}, key=_depth):
        arguments += [mounts[max(_roots_of(above, mounts), key=_depth)], above, above]
    for path in sorted(inside, key=_depth):
        arguments += _covered(path)
    return arguments


def _roots_of(path: str, mounts: Iterable[str]) -> list[str]:
    """Those of the given directories that are the path or lie above it."""
    return [root for root in mounts if Path(path).is_relative_to(root)]


def _between(path: str, root: str) -> list[str]:
    """The directories above a path that lie below the root."""
    return [str(above) for above in Path(path).parents if above != Path(root) and above.is_relative_to(root)]


def _covered(path: str) -> list[str]:
    if os.path.isdir(path):
        return ["--tmpfs", path, "--remount-ro", path] if path.startswith("/proc/") else ["--tmpfs", path]
    return ["--ro-bind", os.devnull, path] if os.path.exists(path) else []


def _depth(path: str) -> int:
    return len(Path(path).parts)
