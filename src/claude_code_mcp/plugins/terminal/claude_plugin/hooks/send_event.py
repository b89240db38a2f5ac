"""Reports events of a terminal session to this user's claude-code-mcp servers, and asks them about permissions.

Claude Code runs this program for each event, with the event as JSON on stdin. It runs as `python3 -I -S` and imports
nothing but built-in modules, so that it ends within milliseconds. Without a server, and after any error, it ends
silently, and Claude Code continues as if there were no hook.

`PermissionRequest` waits for an answer while the dialog is open in the terminal. The first server that answers ends the
wait: with a decision, which is printed, or with `over`, because the person at the keyboard was faster. If a server ends
without an answer, the question goes to the next server that starts. Without a server, the hook waits a minute for the
first one: Claude Code starts our server together with the session.

Hooks of other events, except the first and last of a session, do not block the terminal (`async` in hooks.json). They
keep running until the servers have checked them, because servers trust only processes that the terminal started.

    send_event.py EVENT DIRECTORY

DIRECTORY holds the sockets of the servers. The message is the line `EVENT PID STARTED SIZE AGAIN`, then SIZE bytes of
JSON. AGAIN is 1 if another server had the question before, and 0 otherwise.
"""

import _socket
import os
import select
import sys
import time

MAX_SERVERS = 8
MAX_EVENT = 8 << 20
MAX_NOTE = 128 << 10  # a socket takes this at once: a note must not wait for a busy server
LOOKED_AT = 10.0  # seconds to wait for a busy server
RETRY = 1.0
FIRST_SERVER = 60.0  # seconds to wait for a first server


def main() -> None:
    name, directory = sys.argv[1:]
    started = time.time()
    servers = connect(directory)
    asks = name == "PermissionRequest"
    if not servers and not asks:
        return
    event = read(MAX_EVENT if asks else MAX_NOTE)
    if event is None:
        return
    head = f"{name} {os.environ.get('CLAUDE_PID', '0')} {started:.3f} {len(event)}"
    message, again = (f"{head} {number}\n".encode() + event for number in (0, 1))
    if not asks:
        sent = [server for server in servers if send(server, message, 0.1)]
        if not name.startswith("Session"):
            wait_until_closed(sent, started + LOOKED_AT)
        return
    # The dialog of a background subagent appears only after its hooks have ended.
    if not servers and b'"agent_id"' in event:
        return
    answer = wait_for_answer(servers, message, again, directory)
    if answer is not None and answer != b"over":
        os.write(1, answer)


def connect(directory: str) -> "list[_socket.socket]":
    servers: list[_socket.socket] = []
    try:
        os.chdir(directory)  # the address of a socket has 100 bytes: its name alone always fits
        found = os.stat(".")
        if found.st_uid != os.getuid() or found.st_mode & 0o022:
            return servers  # another user could have created a socket there and would answer the dialog
        names = sorted(name for name in os.listdir() if name.endswith(".sock"))
    except OSError:
        return servers
    for name in names[:MAX_SERVERS]:
        server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            server.setblocking(False)
            server.connect(name)
        except OSError:
            server.close()  # left by a server that was killed, or one with too many clients
        else:
            servers.append(server)
    return servers


def read(most: int) -> bytes | None:
    parts, size = [], 0
    while part := os.read(0, 1 << 16):
        size += len(part)
        if size <= most:
            parts.append(part)
    return b"".join(parts) if size <= most else None


def send(server: "_socket.socket", message: bytes, timeout: float) -> bool:
    try:
        server.settimeout(timeout)
        server.sendall(message)
    except OSError:
        server.close()
        return False
    return True


def wait_until_closed(servers: "list[_socket.socket]", deadline: float) -> None:
    for server in servers:
        try:
            server.settimeout(max(0.001, deadline - time.time()))
            while server.recv(100):
                pass
        except OSError:
            pass


def wait_for_answer(connected: "list[_socket.socket]", message: bytes, again: bytes, directory: str) -> bytes | None:
    """Returns the first answer; None if Claude Code has gone or no server has come. Servers that start meanwhile are
    sent `again`."""
    servers = {server.fileno(): server for server in connected if send(server, message, 5)}
    received = dict.fromkeys(servers, b"")
    parent, had_server = os.getppid(), bool(servers)
    first_until = time.monotonic() + FIRST_SERVER
    while had_server or time.monotonic() < first_until:
        poll = select.poll()
        poll.register(1, 0)  # reports only that Claude Code no longer reads
        for number in servers:
            poll.register(number, select.POLLIN)
        for number, _ in poll.poll(30_000 if servers else RETRY * 1000):
            if number == 1:
                return None
            try:
                data = servers[number].recv(1 << 16)
            except OSError:
                data = b""
            received[number] += data
            if b"\n" in received[number]:
                return received[number].partition(b"\n")[0]
            if not data:
                servers.pop(number).close()
        if os.getppid() != parent:
            return None
        if not servers:
            servers = {server.fileno(): server for server in connect(directory) if send(server, again, 5)}
            received = dict.fromkeys(servers, b"")
            had_server = had_server or bool(servers)
    return None


if __name__ == "__main__":
    try:  # noqa: SIM105 - contextlib takes longer to import than all of this
        main()
    except Exception:  # noqa: S110 - whatever goes wrong, the terminal goes on
        pass
