"""The text pipeline of the page, run in Node on its sources."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support import npm

ROOT = Path(__file__).parents[3]
PIPELINE = Path(__file__).with_name("pipeline.mjs")
Draw = Callable[..., list[Any]]


def node_command(script: Path = PIPELINE) -> list[str]:
    """Runs a script with the pipeline. Raises npm.Unavailable."""
    node = shutil.which("node")
    if node is None:
        raise npm.Unavailable("node is not on PATH")
    modules = npm.BUILD / "web"
    npm.install(ROOT / "web" / "package.json", modules)
    return [node, str(script), str(ROOT / "web" / "src"), str(modules)]


def draw(*wanted: tuple[str, str]) -> list[Any]:
    """What the page draws: for each pair of a function and a text, its nodes as [tag, attributes, children]."""
    done = subprocess.run(node_command(), input=json.dumps(wanted).encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    result: list[Any] = json.loads(done.stdout)
    return result
