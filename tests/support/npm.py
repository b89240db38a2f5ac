"""Packages from npm at exact versions, installed once for each `package.json`, with no lock file.

They go to a directory that git ignores. Without npm or a registry the reason is told, so that tests can be skipped
with it. As a program, this installs what the tests need: `make setup` does that, so that no test has to wait for it.
"""

import shutil
import subprocess
from pathlib import Path

from filelock import FileLock

BUILD = Path(__file__).parents[2] / "build"
_INSTALL_SECONDS = 240
_QUIET = ("--no-package-lock", "--no-audit", "--no-fund", "--prefer-offline", "--loglevel=error")
_SOON = ("--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=2000")  # offline is told soon


NEEDED = {
    "authorization-server": "tests/plugins/team",
    "clients": "tests/scenarios/real_clients",
    "servers": "tests/hub",
    "web": "web",
    "web-checks": "tests/plugins/console/browser",
}
"""Where the `package.json` of what each directory below `BUILD` gets is."""


class Unavailable(Exception):
    """Why the packages cannot be had here."""


def install(manifest: Path, place: Path) -> None:
    """What the manifest names, in `place/node_modules`, installed now if it is not yet. Raises Unavailable."""
    place.mkdir(parents=True, exist_ok=True)
    with FileLock(place / ".lock"):
        if not _is_current(manifest, place):
            _npm_install(manifest, place)


def _is_current(manifest: Path, place: Path) -> bool:
    installed = place / "installed.json"
    return installed.is_file() and installed.read_bytes() == manifest.read_bytes()


def _npm_install(manifest: Path, place: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("npm is not on PATH")
    shutil.rmtree(place / "node_modules", ignore_errors=True)
    shutil.copyfile(manifest, place / "package.json")
    try:
        done = subprocess.run(
            [npm, "install", "--ignore-scripts", *_QUIET, *_SOON],
            cwd=place,
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
    shutil.copyfile(manifest, place / "installed.json")


def main() -> None:
    """Installs all of it, or says why not: whoever runs no such test needs none."""
    try:
        for place, manifest in NEEDED.items():
            install(BUILD.parent / manifest / "package.json", BUILD / place)
    except Unavailable as reason:
        print(f"Tests with programs from npm are skipped: {reason}")


if __name__ == "__main__":
    main()
