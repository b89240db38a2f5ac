"""A container for a child: the same view as a sandbox, as arguments of `docker run` or `podman run`.

The image has the programs of the system. It must exist locally and have a C library that Claude Code's program can
use; that program is mounted, like everything else of the view. The root of the image is read-only. Differences from a
sandbox:

- The engine gets directories by path: a directory that is replaced between the check and the mount is not noticed.
- The engine's own system call filter applies, /proc is writable, and the child's stdin and stdout are the engine's
  pipes: its commands can write to its output.
- The engine enforces limits, for the whole container.
- The engine ends the container with its client if it is asked to, but not if the client is killed. Then `removal` ends
  it, after the client has ended. After a crash of the server the child reads the end of its input.
"""

import csv
import io
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ...core.isolation import IsolatedCommand
from ...core.processes.environment import MARK
from ...core.processes.limits import ResourceLimits
from .bubblewrap import Mount, SandboxView

_PROGRAMS = ("podman", "docker")
_PROBE_SECONDS = 60.0
_IN_MEMORY = 256 << 20
"""Size limit of an in-memory directory, in bytes."""


def unavailable(environment: Mapping[str, str], image: str) -> str | None:
    """Why containers of this image are unavailable, in one line; None if they work. Asks the engine. Blocks."""
    program = _program(environment)
    if program is None:
        return "neither Podman nor Docker is installed"
    try:
        done = subprocess.run(
            [program, "image", "inspect", "--format", "{{.Id}}", "--", image],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{os.path.basename(program)} does not run: {error}"
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return f"{os.path.basename(program)}: {lines[-1] if lines else 'unknown reason'}" if done.returncode else None


def isolate(
    view: SandboxView, argv: Sequence[str], scratch: Path, environment: Mapping[str, str], image: str
) -> IsolatedCommand:
    """The command that runs `argv` with this view in a container of the image. `argv[0]` is a path. `scratch` is a
    private directory of the child, for its `/tmp` and the file with its variables. The engine's client runs in
    `environment`, the child only with the view's variables. Descriptors are closed: the engine gets the paths they lead
    to. Raises OSError if something cannot be passed to a container; then the caller keeps the descriptors. Blocks on
    the disk."""
    program = _program(environment)
    if program is None:
        raise FileNotFoundError(2, "neither Podman nor Docker is installed", _PROGRAMS[0])
    temporary = scratch / "tmp"
    temporary.mkdir(mode=0o700)
    # Chosen here and not by the engine, so that `removal` finds the container even if its client was killed at once.
    name = f"claude-code-mcp-{view.environment.get(MARK) or uuid.uuid4().hex}"
    mounts = [Mount("/tmp", str(temporary), writable=True), *view.in_order()]  # noqa: S108 - its own
    command = [
        *(program, "run", "--rm", "--interactive", "--init", "--name", name, "--pull", "never", "--read-only"),
        *("--network", "host" if view.network else "none", "--cap-drop", "all"),
        # Without a label: SELinux would refuse the mounts, which keep their labels from the host.
        *("--security-opt", "no-new-privileges", "--security-opt", "label=disable"),
        *_user(program),
        *_limits(view.limits),
        *(part for mount in mounts for part in ("--mount", _mounted(mount))),
        *("--env-file", str(_written(view.environment, scratch)), "--workdir", view.cwd),
        *("--entrypoint", argv[0], image, *argv[1:]),
    ]
    # Only now: every step above may fail, and until then the caller owns the descriptors.
    for mount in view.mounts:
        if isinstance(mount.source, int):
            os.close(mount.source)
    # With the mark, so that a client that outlives the server is found like any other child.
    outside = {**environment, **({MARK: view.environment[MARK]} if MARK in view.environment else {})}
    return IsolatedCommand(command, outside, removal=(program, "rm", "--force", "--volumes", name))


def _program(environment: Mapping[str, str]) -> str | None:
    path = environment.get("PATH", os.defpath)
    found = next((found for name in _PROGRAMS if (found := shutil.which(name, path=path))), None)
    return os.path.abspath(found) if found else None


def _user(program: str) -> list[str]:
    """The options that make the server's user the owner of files that the child creates."""
    if os.geteuid() == 0:
        return []
    keep = ["--userns", "keep-id"] if os.path.basename(program) == "podman" else []
    return [*keep, "--user", f"{os.geteuid()}:{os.getegid()}"]


def _limits(limits: ResourceLimits) -> Iterator[str]:
    if limits.memory is not None:
        # The second value limits memory and swap together: an equal value means no swap.
        yield from ("--memory", str(limits.memory), "--memory-swap", str(limits.memory))
    if limits.processes is not None:
        yield from ("--pids-limit", str(limits.processes))
    if limits.cpus is not None:
        yield from ("--cpus", f"{limits.cpus:g}")
    if limits.cpu_seconds is not None:
        yield from ("--ulimit", f"cpu={limits.cpu_seconds}:{limits.cpu_seconds}")
    if limits.file_size is not None:
        yield from ("--ulimit", f"fsize={limits.file_size}:{limits.file_size}")


def _mounted(mount: Mount) -> str:
    if mount.source is None:
        fields = ["type=tmpfs", f"dst={mount.target}", f"tmpfs-size={_IN_MEMORY}"]
    else:
        source = os.readlink(f"/proc/self/fd/{mount.source}") if isinstance(mount.source, int) else mount.source
        fields = ["type=bind", f"src={source}", f"dst={mount.target}", *([] if mount.writable else ["readonly"])]
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(fields)  # the engines parse it as CSV, including commas and quotes
    return text.getvalue()


def _written(variables: Mapping[str, str], scratch: Path) -> Path:
    """A private file with the variables, which must not appear in the process list."""
    for name, value in variables.items():
        # The file has one variable per line: a line break in a value would begin another variable.
        if "\n" in value:
            raise OSError(22, "a variable with several lines cannot be passed to a container", name)
    path = scratch / "environment"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.writelines(f"{name}={value}\n" for name, value in variables.items())
    return path
