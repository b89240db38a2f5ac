"""Real shells, run where nothing can be harmed, with one program that only writes down that it was called.

`SealedShells` starts a sandbox (bubblewrap) with the system's programs, without a network, and with one directory that
can be written: `FILES`, a small repository of git, files whose names look like options, and scripts and settings that
call the denied program. In the sandbox `drive`, this very file, gives each line to a shell of its own, waits for
everything that the line has started, and tells what it did. What a line has changed is put back before the next.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Only the standard library: this file is also run in the sandbox, where there is nothing else.

DENIED = "rm"
CANARY = "x"
"""The file that the denied command would remove."""
SHELLS: Mapping[str, Sequence[str]] = {
    "bash": ["bash", "--norc", "--noprofile"],
    "dash": ["dash"],
    "zsh": ["zsh", "-f"],
}
FILES: Mapping[str, str] = {
    CANARY: "still here\n",
    "f": "b\na\na b c\n1\n",
    "a": "",
    "b": "",
    "dir/g": "a\n",
    "src/m.py": "import os\nos.system('rm x')\n",
    "Makefile": "all:\n\trm x\n",
    **dict.fromkeys(("run.sh", "ls", "bin/ls"), "#!/bin/sh\nrm x\n"),
    "e.sed": "1e rm x\n",
    "e.awk": 'BEGIN { system("rm x") }\n',
    "e.pl": "system('rm x')\n",
    "p.json": '{"scripts": {"test": "rm x"}}\n',
    # Names that a pattern puts among the words
    "-e": "",
    "-exec": "",
    "-delete": "",
    "--in-place": "",
    "-i": "",
    "--compress-program=rm": "",
    "--output=x": "",
    "-ox": "",
    "1e rm x": "",
    "a[$(rm x)]": "",
    "hooks/post-checkout": "#!/bin/sh\nrm x\n",
    "hooks/reference-transaction": "#!/bin/sh\nrm x\n",
    "hooks/post-index-change": "#!/bin/sh\nrm x\n",
}
_EXECUTABLE = (
    "run.sh",
    "ls",
    "bin/ls",
    "hooks/post-checkout",
    "hooks/reference-transaction",
    "hooks/post-index-change",
)
_SETTINGS = """[core]
\tpager = rm x
\teditor = rm x
\tsshCommand = rm x
\thooksPath = hooks
[alias]
\tz = !rm x
[gpg]
\tprogram = rm
[credential]
\thelper = !rm x
[diff]
\ttool = t
[difftool "t"]
\tcmd = rm x
[sequence]
\teditor = rm x
[remote "origin"]
\turl = ssh://localhost/x
"""
_LOOKS_LIKE_ONE = """[core]
\trepositoryformatversion = 0
\tbare = false
\tworktree = ..
\tfsmonitor = rm x; true
"""
"""The settings of a directory that git takes for a repository; a session could write it, file by file."""
_SIGNED = """tree {tree}
parent {parent}
author A <a@example.org> 1700000000 +0000
committer A <a@example.org> 1700000000 +0000
gpgsig -----BEGIN PGP SIGNATURE-----
 x
 -----END PGP SIGNATURE-----

signed
"""
_LIMIT = 60.0
"""Seconds for one line: only for one that would never end."""


@dataclass(frozen=True)
class Effect:
    """What a line did."""

    called: bool
    """The denied program was called."""
    changed: tuple[str, ...] = ()
    """Files that are gone or have other contents; new ones count unless they are empty."""
    endless: bool = False


def missing() -> str:
    """Why there can be no sealed shells here; empty if there can."""
    if (bwrap := shutil.which("bwrap")) is None:
        return "bubblewrap is not installed"
    tried = subprocess.run([bwrap, *_SEALED, "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else f"bubblewrap does not work: {tried.stderr.decode(errors='replace')[:200]}"


def _system() -> list[str]:
    """The arguments that give the system's programs, and nothing else of the machine."""
    arguments = []
    for path in ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/etc/alternatives", "/etc/passwd"):
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            arguments += ["--ro-bind", path, path]
    return arguments


_SEALED = ["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", *_system()]
_SEALED += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]


class SealedShells:
    """Shells in a sandbox; made by `sealed_shells`."""

    def __init__(self, place: Path) -> None:
        self._place = place
        (place / "here").mkdir()
        _make_files(place / "files")
        self._recorder = place / "recorder"
        self._recorder.write_text(f"#!/bin/sh\necho called >>{place}/called\n")
        self._recorder.chmod(0o755)

    def effects(self, shell: str, lines: Sequence[str], variables: Mapping[str, str] | None = None) -> list[Effect]:
        """What each line does in a shell with these variables, in order."""
        order = {"place": str(self._place), "argv": SHELLS[shell], "variables": variables or {}, "lines": lines}
        done = subprocess.run(
            [*self._sandbox(), sys.executable, "-I", __file__],
            input=json.dumps(order).encode(),
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"the sandbox has failed: {done.stderr.decode(errors='replace')[-2000:]}")
        return [Effect(one["called"], tuple(one["changed"]), one["endless"]) for one in json.loads(done.stdout)]

    def _sandbox(self) -> list[str]:
        real = os.path.realpath(shutil.which(DENIED) or f"/usr/bin/{DENIED}")
        arguments = ["bwrap", *_SEALED, "--bind", str(self._place), str(self._place)]
        for path in dict.fromkeys((sys.prefix, sys.base_prefix, __file__)):
            arguments += ["--ro-bind", path, path]
        return [*arguments, "--ro-bind", str(self._recorder), real, "--chdir", str(self._place / "here"), "--"]


@contextmanager
def sealed_shells() -> Iterator[SealedShells]:
    """Shells in a sandbox with a directory of their own, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="sealed-") as name:
        yield SealedShells(Path(name))


def _make_files(directory: Path) -> None:
    """The files that lines find, and a repository with two commits, one of them signed."""
    for name, text in FILES.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    for name in _EXECUTABLE:
        (directory / name).chmod(0o755)
    author = {f"GIT_{who}_{what}": "a@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

    def git(*arguments: str, text: str = "") -> str:
        return subprocess.run(
            ["git", *arguments],
            cwd=directory,
            env={"PATH": os.environ["PATH"], "HOME": str(directory), "GIT_CONFIG_GLOBAL": os.devnull, **author},
            input=text.encode(),
            capture_output=True,
            check=True,
        ).stdout.decode()

    git("init", "-q", "-b", "main")
    git("add", "--", "f", "dir", "src")
    git("commit", "-qm", "first")
    tree, parent = git("rev-parse", "HEAD^{tree}").strip(), git("rev-parse", "HEAD").strip()
    signed = git("hash-object", "-t", "commit", "-w", "--stdin", text=_SIGNED.format(tree=tree, parent=parent))
    git("update-ref", "refs/heads/main", signed.strip())
    git("tag", "v1")
    git("clone", "-q", "--bare", ".", "evil")
    git("--git-dir=evil", "--work-tree=.", "read-tree", "HEAD")
    (directory / "evil" / "config").write_text(_LOOKS_LIKE_ONE)
    with (directory / ".git" / "config").open("a") as settings:
        settings.write(_SETTINGS)


# -- in the sandbox -------------------------------------------------------------------------------------------------


def drive() -> None:
    """Reads what to do from stdin, does it, and writes the effects to stdout, both as JSON."""
    order = json.load(sys.stdin)
    place = Path(order["place"])
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: what a line leaves behind becomes our child
    signal.signal(signal.SIGALRM, _out_of_time)
    before: dict[str, object] = {}
    effects: list[dict[str, Any]] = []
    for line in order["lines"]:
        if not before:
            shutil.rmtree(place / "here")
            shutil.copytree(place / "files", place / "here", symlinks=True)
            before = _contents(place / "here")
        (place / "called").unlink(missing_ok=True)
        endless = _run([*order["argv"], "-c", line], place / "here", order["variables"])
        after = _contents(place / "here")
        changed = sorted(name for name in before if after.get(name) != before[name])
        new = sorted(name for name in after.keys() - before.keys() if after[name] not in ("", None))
        effects.append({"called": (place / "called").exists(), "changed": changed + new, "endless": endless})
        if after != before:
            before = {}
    json.dump(effects, sys.stdout)


def _run(argv: Sequence[str], directory: Path, variables: Mapping[str, str]) -> bool:
    """Runs one shell, and waits until nothing that it has started is left; whether something had to be killed."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(directory), "LC_ALL": "C.UTF-8", **variables}
    null = subprocess.DEVNULL
    try:
        started = subprocess.Popen(
            argv, cwd=directory, env=environment, stdin=null, stdout=null, stderr=null, start_new_session=True
        )
    except ValueError:  # a NUL, with which nothing is run
        return False
    signal.setitimer(signal.ITIMER_REAL, _LIMIT)
    try:
        _wait_for_all()
        endless = False
    except TimeoutError:
        endless = True
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) not in (1, os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(name), signal.SIGKILL)
        _wait_for_all()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    started.returncode = 0  # it has been waited for, and must not be once more
    return endless


def _wait_for_all() -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _out_of_time(*_: object) -> None:
    raise TimeoutError


def _contents(directory: Path) -> dict[str, object]:
    """By path, the contents of each file, None for a directory; of git's own files only the size, without those that
    it renews by itself when it looks at the state of files."""
    found: dict[str, object] = {}
    for top, directories, names in os.walk(directory):
        below = os.path.relpath(top, directory)
        for name in directories:
            found[os.path.join(below, name)] = None
        for name in names:
            path = os.path.join(top, name)
            if "/.git" not in f"/{below}":
                found[os.path.join(below, name)] = os.readlink(path) if os.path.islink(path) else _text(path)
            elif name != "index":
                found[os.path.join(below, name)] = os.path.getsize(path)
    return found


def _text(path: str) -> str:
    with open(path, errors="replace") as file:
        return file.read()


if __name__ == "__main__":
    drive()
