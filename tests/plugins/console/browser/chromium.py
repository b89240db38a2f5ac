"""The Chromium of these tests. Most use a headless shell, from the system or from npm, because it needs about half the
processor time of a complete Chromium. Only a complete Chromium from the system has notifications.

TEST_CHROMIUM chooses for all tests: `system` (a complete one), `npm`, or the path of a program.
"""

import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

from tests.support import npm
from tests.support.npm import Unavailable

HERE = Path(__file__).parent
PLACE = npm.BUILD / "chromium"
_COMPLETE = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_HEADLESS_SHELLS = ("chromium-headless-shell", "chrome-headless-shell")
_PACKED = PLACE / "node_modules" / "@sparticuz" / "chromium"
_SECONDS = 120
_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{root}/fonts</dir><dir>/usr/share/fonts</dir><cachedir>{root}/font-cache</cachedir></fontconfig>
"""


@dataclass(frozen=True, slots=True)
class Chromium:
    """A program that starts, and the variables that it needs for that."""

    executable: str
    environment: dict[str, str] = field(default_factory=dict)


def find_chromium() -> Chromium:
    """Raises Unavailable, with the reasons, where there is none."""
    choice = os.environ.get("TEST_CHROMIUM", "")
    if choice == "system":
        return find_complete_chromium()
    if choice not in {"", "npm"}:
        return Chromium(choice)
    if choice == "" and (shell := _on_path(_HEADLESS_SHELLS)):
        return Chromium(shell)
    try:
        return _from_npm()
    except Unavailable as error:
        if choice == "" and (complete := _on_path(_COMPLETE)):
            return Chromium(complete)
        raise Unavailable(f"no Chromium is installed (on Debian: apt-get install chromium), and {error}") from None


def find_complete_chromium() -> Chromium:
    """A Chromium of the system with all of its features. Raises Unavailable."""
    if complete := _on_path(_COMPLETE):
        return Chromium(complete)
    raise Unavailable("no complete Chromium is installed (on Debian: apt-get install chromium)")


def _on_path(names: Iterable[str]) -> str | None:
    return next((path for name in names if (path := shutil.which(name))), None)


def _from_npm() -> Chromium:
    node = shutil.which("node")
    if node is None:
        raise Unavailable("Node is not on PATH")
    npm.install(HERE / "chromium.package.json", PLACE)
    root = PLACE / "unpacked"
    with FileLock(PLACE / ".unpack-lock"):
        version = (_PACKED / "package.json").read_bytes()
        marker = root / "package.json"  # written last: what is there is whole
        if not marker.is_file() or marker.read_bytes() != version:
            _unpack(node, root)
            marker.write_bytes(version)
    environment = {"LD_LIBRARY_PATH": str(root / "lib"), "FONTCONFIG_FILE": str(root / "fonts.conf")}
    _check_that_it_starts(root / "chromium", environment)
    return Chromium(str(root / "chromium"), environment)


def _unpack(node: str, root: Path) -> None:
    """The program, the libraries that a small system does not have, and a font. Node has brotli, and Python has not."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    with tempfile.TemporaryDirectory(dir=PLACE) as scratch:
        done = subprocess.run(
            [node, HERE / "unbrotli.mjs", _PACKED / "bin", scratch],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode:
            raise Unavailable("Chromium cannot be unpacked: " + " ".join(done.stderr.split())[:300])
        for archive in Path(scratch).glob("*.tar"):
            with tarfile.open(archive) as opened:
                opened.extractall(root, filter="data")
        program = Path(scratch, "chromium").replace(root / "chromium")
    program.chmod(0o755)
    (root / "fonts.conf").write_text(_FONTS.format(root=root), encoding="utf-8")


def _check_that_it_starts(program: Path, environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(
            [program, "--version"],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"the Chromium of the package does not start: {error}") from None
    if done.returncode:
        raise Unavailable("the Chromium of the package does not start: " + " ".join(done.stderr.split())[:300])
