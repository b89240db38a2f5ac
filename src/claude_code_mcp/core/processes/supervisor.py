"""The supervisor: a small program that starts this server's children and ends whatever they leave behind.

`supervisor_client.py` runs it as a script, on Linux, with only the standard library. It guarantees by construction,
instead of by a search, that *everything a child starts ends with it*:

- For every child the supervisor forks a *reaper*. A reaper is a subreaper (`PR_SET_CHILD_SUBREAPER`): each orphan
  among the child's descendants becomes the reaper's own child, whatever its session, name or environment.
- When the child ends, the reaper kills all its descendants, reaps them and ends. When the server dies, the reaper sees
  the end of its control socket and does the same. When a reaper itself is killed, the kernel kills the child (parent
  death signal), and the supervisor, a subreaper too, inherits the rest and kills it.
- The supervisor ignores signals meant for the server, lives in a separate session, and ends when the server has ended
  and no reaper is left.

A child runs at a lower priority (the second argument), so that forty busy sessions do not keep the server from
answering.

A descendant that runs as another user (a set-user-id program) can be signaled only if the server runs as root; it is
given up after `_LIMIT` seconds. If supervisor and reaper are killed together, the kernel kills the child, and its
descendants are left to the sweep by mark in `leftovers.py`.

Wire format. On the main socket, per child: four bytes of length with descriptors attached (the child's stdin, stdout
and stderr, the reaper's end of a control socket, and any number of others for the child), then the NUL-separated
payload: directory, the target numbers of the other descriptors, number of directives, directives, number of arguments,
arguments, `NAME=value` pairs. The reaper writes lines to its control socket: `S pid` (started), `F errno` (could not be
started), `X code` (the child ended; negative for a signal); the end of the socket means that nothing is left. It reads
single bytes: `T` sends SIGTERM to the child's process group, `K` kills everything at once.

Directives set the child's resource limits, see `limits.py`: `rlimit NAME VALUE`, `oom VALUE`, `group PATH` (a control
group to create, put the child into and remove), `set VALUE PATH` (a file in it), `try VALUE PATH` (the same, if the
file exists) and `memory BYTES`. With `memory`, the reaper measures the child with all its descendants and ends the
largest process while the total is above the limit; it then writes `M`. It also writes `M` at the end if the kernel has
done so in the child's group. `execute PATH` names a file that may be executed: if there is any such directive, no other
file can be executed, provided that the kernel has Landlock (Linux 5.19 and later).
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import select
import signal
import socket
import struct
import sys
import time

_SET_PARENT_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36
_SET_NO_NEW_PRIVILEGES = 38
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_MAY_EXECUTE, _MAY_MOVE = 1 << 0, 1 << 13
_BENEATH_PATH = 1
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL for a child whose server is gone."""
_LIMIT = 5.0
"""Seconds after which to give up on descendants that cannot be killed."""
_PAUSE = 0.005
_MEMORY_PAUSE = 1.0
"""Seconds between two measurements of a child's memory; nothing reports its growth."""
_CHANNELS = 4
"""The descriptors in every request."""
_MAX_DESCRIPTORS = 253
"""The kernel's maximum per message."""
_GROUP_PRIORITY_PAUSE = 0.15
"""Seconds before a refused change of a group's priority is retried: the kernel allows ten per second for all users."""

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Serves spawn requests on the socket whose descriptor is the first argument, until its other end is closed. The
    second argument is how much lower the children's priority is."""
    with contextlib.suppress(OSError):
        os.setsid()
    _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    descriptor = int(sys.argv[1])
    for other in map(int, os.listdir("/proc/self/fd")):
        if other > 2 and other != descriptor:  # descriptors that the server left open for its children
            with contextlib.suppress(OSError):
                os.close(other)
    with socket.socket(fileno=descriptor) as requests:
        os.set_inheritable(descriptor, False)
        _serve(requests)


def _serve(requests: socket.socket) -> None:
    child_ended = _watch_children()
    reapers: set[int] = set()
    orphans_until: float | None = None
    while True:
        ready, _, _ = select.select([requests.fileno(), child_ended], [], [], None if orphans_until is None else _PAUSE)
        if child_ended in ready:
            os.read(child_ended, 4096)
        # Only a killed reaper leaves processes behind: one that exits normally has ended all descendants before.
        if _forget_ended(reapers):
            orphans_until = time.monotonic() + _LIMIT
        if orphans_until is not None and (not _kill_orphans(reapers) or time.monotonic() > orphans_until):
            orphans_until = None
        if requests.fileno() in ready:
            request = _receive(requests)
            if request is None:
                break
            reaper = _fork_reaper(requests, *request)
            if reaper is not None:
                reapers.add(reaper)
    # Each reaper has seen the end of its socket by now; processes that outlive all reapers are killed here.
    until = time.monotonic() + _GRACE + 2 * _LIMIT
    while reapers and time.monotonic() < until:
        select.select([child_ended], [], [], 0.1)
        _forget_ended(reapers)
    _end_descendants()


def _watch_children() -> int:
    """A descriptor that becomes readable when a child ends."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    # A handler that does nothing is needed: a signal without one writes nothing to the wake-up descriptor.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def _forget_ended(reapers: set[int]) -> bool:
    """Removes ended reapers from the list; returns whether one was killed, so that we inherited its descendants."""
    orphaned = False
    while (ended := _reap_one()) is not None:
        pid, status = ended
        if pid in reapers:
            reapers.discard(pid)
            orphaned = orphaned or os.WIFSIGNALED(status)
    return orphaned


def _kill_orphans(reapers: set[int]) -> bool:
    """Kills the descendants of a killed reaper; returns whether there were any. Repeat it: a process that dies during
    the search hands over its children only then."""
    orphans = [pid for pid in _children_of([os.getpid()]) if pid not in reapers]
    _kill_all(orphans)
    return bool(orphans)


def _reap_one() -> tuple[int, int] | None:
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def _receive(requests: socket.socket) -> tuple[list[int], list[bytes]] | None:
    """The next request: descriptors and payload fields; None at the end."""
    try:
        head, descriptors, _, _ = socket.recv_fds(requests, 4, _MAX_DESCRIPTORS)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)  # `recv_fds` ignores the flag that would do it
        if len(head) < 4 or len(descriptors) < _CHANNELS:
            return None
        (length,) = struct.unpack("!I", head)
        payload = bytearray()
        while len(payload) < length:
            piece = requests.recv(min(length - len(payload), 1 << 16))
            if not piece:
                return None
            payload += piece
    except OSError:
        return None
    return list(descriptors), bytes(payload).split(b"\0")


def _fork_reaper(requests: socket.socket, descriptors: list[int], fields: list[bytes]) -> int | None:
    """Forks a reaper and returns its process id. If that fails, reports the error to the server and returns None."""
    try:
        reaper = os.fork()
    except OSError as error:  # too many processes: the running ones must not be affected
        with contextlib.suppress(OSError):  # the requester may have ended meanwhile
            os.write(descriptors[_CHANNELS - 1], f"F {error.errno or errno.EIO}\n".encode())
        reaper = None
    if reaper != 0:
        for descriptor in descriptors:
            os.close(descriptor)
        return reaper
    try:
        # If it stayed open here, the server would not notice that the supervisor has died, and its requests would stay
        # unread.
        requests.close()
        with contextlib.suppress(OSError):
            os.setsid()
        _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # not inherited over a fork
        _keep(descriptors, fields)
    finally:
        # On every path: this is a copy of the supervisor, and must not continue with its loop.
        os._exit(0)


# -- a reaper -------------------------------------------------------------------------------------------------------


def _keep(descriptors: list[int], fields: list[bytes]) -> None:
    """Starts one child, reports on it, and returns when nothing of it is left."""
    child_ended = _watch_children()
    *pipes, control_descriptor = descriptors[:_CHANNELS]
    others = descriptors[_CHANNELS:]
    control = socket.socket(fileno=control_descriptor)
    request = _Request(fields)
    try:
        _make_groups(request)
        pid = _start(pipes, others, request)
    except OSError as error:
        _remove_groups(request.groups)
        _report(control, f"F {error.errno or errno.EIO}")
        return
    for descriptor in (*pipes, *others):
        os.close(descriptor)  # otherwise the server would never see the end of the pipes
    _report(control, f"S {pid}")
    try:
        status = _wait_for(pid, control, child_ended, request.memory)
        # Before the exit, so that the reason is in the stderr that the report of the exit quotes.
        if any(map(_has_killed, request.groups)):
            _report(control, "M")
        if status is not None:
            _report(control, f"X {os.waitstatus_to_exitcode(status)}")
    finally:
        _end_descendants()
        _remove_groups(request.groups)


def _report(control: socket.socket, line: str) -> None:
    with contextlib.suppress(OSError):  # a server that is gone needs no report
        control.sendall(line.encode() + b"\n")


class _Request:
    """A request to start a child, from the fields of a payload."""

    def __init__(self, fields: list[bytes]) -> None:
        self.directory, numbers, *rest = fields
        self.numbers = [int(number) for number in numbers.split()]
        directives, rest = _counted(rest)
        self.arguments, rest = _counted(rest)
        self.environment = dict(pair.split(b"=", 1) for pair in rest if pair)
        self.directives = [(kind, value) for kind, _, value in (each.partition(b" ") for each in directives)]
        self.groups = [value for kind, value in self.directives if kind == b"group"]
        self.memory = next((int(value) for kind, value in self.directives if kind == b"memory"), None)


def _counted(fields: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Splits off a counted list: the first field is its length."""
    count = int(fields[0])
    return fields[1 : count + 1], fields[count + 1 :]


def _start(pipes: list[int], others: list[int], request: _Request) -> int:
    """Forks and executes the child. Raises the OSError of its `exec`."""
    numbered = dict(zip(request.numbers, others, strict=True))
    failed, fail = os.pipe()
    reaper = os.getpid()
    pid = os.fork()
    if not pid:
        try:
            # Out of the way of the numbers that the child's descriptors shall have.
            fail = fcntl.fcntl(fail, fcntl.F_DUPFD_CLOEXEC, max(numbered, default=0) + 1)
            _become({**dict(enumerate(pipes)), **numbered}, request, reaper)
        except OSError as error:
            os.write(fail, str(error.errno or errno.EIO).encode())
        finally:
            # On every path: this is a copy of the reaper, and must not continue as a second reaper.
            os._exit(127)
    # Before the read below, which would never end while this process holds the other end itself.
    os.close(fail)
    code = os.read(failed, 16)  # ends at once when `exec` closes the other end
    os.close(failed)
    if code:
        os.waitpid(pid, 0)
        raise OSError(int(code), os.strerror(int(code)))
    return pid


def _become(descriptors: dict[int, int], request: _Request, reaper: int) -> None:
    """Turns this process into the child, with these descriptors at the requested numbers."""
    os.setsid()
    with contextlib.suppress(OSError):
        os.nice(int(sys.argv[2]))
    _libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != reaper:
        os._exit(127)  # the reaper ended before the parent death signal was set
    signal.set_wakeup_fd(-1)
    # `exec` keeps signals ignored, and so would every program that the child starts.
    for number in (*_IGNORED, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    beyond = max(descriptors) + 1
    # In two steps: moved directly to its number, a descriptor could overwrite another one that has not been moved yet.
    copies = {target: fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, beyond) for target, each in descriptors.items()}
    for target, copy in copies.items():
        os.dup2(copy, target)
    # As late as possible, but before `exec`: no part of the program itself may run without them.
    _take_limits(request)
    os.chdir(request.directory)
    _execute_only([value for kind, value in request.directives if kind == b"execute"])
    os.execve(request.arguments[0], request.arguments, request.environment)  # noqa: S606 - becoming it is the purpose


def _wait_for(pid: int, control: socket.socket, child_ended: int, memory: int | None) -> int | None:
    """Carries out the server's orders until the child ends, and returns its wait status; None if the server is gone and
    the child did not end within the grace period."""
    deadline: float | None = None
    lowered, watch = _lower_group_priority(pid), _MemoryWatch(memory)
    while True:
        if deadline is not None:
            timeout: float | None = max(0.0, deadline - time.monotonic())
        else:
            timeout = watch.pause() if lowered else _GROUP_PRIORITY_PAUSE
        # The socket of a dead server is always readable: waiting for it would be a busy loop.
        listening = [child_ended] if deadline is not None else [control.fileno(), child_ended]
        ready, _, _ = select.select(listening, [], [], timeout)
        if not lowered and not ready:
            lowered = _lower_group_priority(pid)
        if watch.ended_a_process():
            _report(control, "M")
        if child_ended in ready:
            os.read(child_ended, 4096)
            while (ended := _reap_one()) is not None:
                if ended[0] == pid:
                    return ended[1]
        if deadline is not None and time.monotonic() >= deadline:
            return None
        if control.fileno() in ready:
            server_is_gone = _carry_out(_order(control), pid)
            deadline = time.monotonic() + _GRACE if server_is_gone else None


def _carry_out(order: bytes, pid: int) -> bool:
    """Carries out an order of the server; returns whether the server is gone instead."""
    if order == b"K":
        _signal(pid, signal.SIGKILL)
    else:
        _signal_group(pid, signal.SIGTERM)
    return not order


def _lower_group_priority(pid: int) -> bool:
    """Gives the child's session the child's priority; False if the kernel asks to retry. With the kernel's autogroup
    feature a process's priority counts only within its session, and the session competes with the server. Kernels
    without autogroups have no such file and need nothing."""
    try:
        with open(f"/proc/{pid}/autogroup", "w") as file:
            file.write(sys.argv[2])
    except OSError as error:
        return error.errno != errno.EAGAIN
    return True


def _order(control: socket.socket) -> bytes:
    try:
        return control.recv(1)
    except OSError:
        return b""


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


# -- limits ---------------------------------------------------------------------------------------------------------


def _make_groups(request: _Request) -> None:
    """Creates the child's control groups with their limits. Raises OSError if one cannot be enforced."""
    for kind, value in request.directives:
        if kind == b"group":
            os.mkdir(value)
        elif kind in (b"set", b"try"):
            content, _, path = value.partition(b" ")
            with contextlib.suppress(*([OSError] if kind == b"try" else [])):
                _write(path, content)


def _take_limits(request: _Request) -> None:
    """Applies the limits to this process, which is about to become the child."""
    for kind, value in request.directives:
        if kind == b"group":
            _write(value + b"/cgroup.procs", b"0")
        elif kind == b"oom":
            with contextlib.suppress(OSError):
                _write(b"/proc/self/oom_score_adj", value)
        elif kind == b"rlimit":
            name, _, number = value.partition(b" ")
            limit = getattr(resource, name.decode())
            hard = resource.getrlimit(limit)[1]
            most = int(number) if hard == resource.RLIM_INFINITY else min(int(number), hard)
            resource.setrlimit(limit, (most, most))


def _execute_only(paths: list[bytes]) -> None:
    """Makes the kernel refuse to execute any other file, for this process and its descendants. Without paths, or
    without kernel support, nothing is refused."""
    # The second version is the first that can leave files free to be moved between directories.
    if not paths or _libc.syscall(_LANDLOCK_CREATE, None, 0, 1) < 2:
        return
    handled = struct.pack("=Q", _MAY_EXECUTE | _MAY_MOVE)
    rules = _libc.syscall(_LANDLOCK_CREATE, handled, len(handled), 0)
    if rules < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    for path, allowed in (*((path, _MAY_EXECUTE) for path in paths), (b"/", _MAY_MOVE)):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", allowed, descriptor)
        if _libc.syscall(_LANDLOCK_ADD, rules, _BENEATH_PATH, rule, 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        os.close(descriptor)
    _libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)  # otherwise the kernel takes no rules from a plain user
    if _libc.syscall(_LANDLOCK_RESTRICT, rules, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.close(rules)


def _write(path: bytes, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)


def _has_killed(group: bytes) -> bool:
    """Whether the kernel killed a process of this group for lack of memory."""
    for name in (b"memory.events", b"memory.oom_control"):
        with contextlib.suppress(OSError), open(group + b"/" + name, "rb") as file:
            return any(line.startswith(b"oom_kill ") and line.split()[1] != b"0" for line in file)
    return False


def _remove_groups(groups: list[bytes]) -> None:
    """Removes the groups. A process that was just reaped may be counted in one for a moment."""
    until = time.monotonic() + _LIMIT
    for group in groups:
        while time.monotonic() < until:
            try:
                os.rmdir(group)
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(_PAUSE)
            else:
                break


class _MemoryWatch:
    """Periodically measures the memory of a child and its descendants."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._next = time.monotonic() + _MEMORY_PAUSE

    def pause(self) -> float | None:
        """Seconds until the next measurement; None if there is none."""
        return None if self._limit is None else max(0.0, self._next - time.monotonic())

    def ended_a_process(self) -> bool:
        """Measures, if it is time, and kills the largest process if the total exceeds the limit."""
        if self._limit is None or time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + _MEMORY_PAUSE
        sizes = {pid: _own_memory(pid) for pid in _descendants()}
        if sum(sizes.values()) <= self._limit:
            return False
        _signal(max(sizes, key=lambda pid: sizes[pid]), signal.SIGKILL)
        return True


def _own_memory(pid: int) -> int:
    """The bytes of a process that it does not share with another program."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared, *_ = file.read().split()
    except (OSError, ValueError):  # it has just ended
        return 0
    return (int(resident) - int(shared)) * resource.getpagesize()


def _descendants() -> list[int]:
    waiting, found = [os.getpid()], []
    while waiting:
        parent = waiting.pop()
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{task}/children", "rb") as file:
                    children = [int(child) for child in file.read().split()]
                waiting += children
                found += children
    return found


# -- ending descendants ---------------------------------------------------------------------------------------------


def _end_descendants() -> None:
    """Kills and reaps until this process has no child left. Because it is a subreaper, it then has no descendants
    either."""
    until = time.monotonic() + _LIMIT
    while time.monotonic() < until:
        _kill_all(_children_of([os.getpid()]))
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(_PAUSE)


def _kill_all(roots: list[int]) -> None:
    """Suspends the trees below `roots` from the top, so that nothing forks, and then kills all of them."""
    seen: list[int] = []
    generation = roots
    while generation:
        for pid in generation:
            _signal(pid, signal.SIGSTOP)
        seen += generation
        known = set(seen)
        generation = [pid for pid in _children_of(generation) if pid not in known]
    for pid in seen:
        _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _children_of(parents: list[int]) -> list[int]:
    """The children of these processes, from one reading of /proc."""
    wanted = set(parents)
    found = []
    # Not by the `children` files, which leave some out while processes come and go; here none may be missed.
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            if parent in wanted:
                found.append(int(name))
    return found


if __name__ == "__main__":
    main()
