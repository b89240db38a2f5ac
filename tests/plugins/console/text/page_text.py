"""The text pipeline of the page, run in Node on its sources."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import npm

ROOT = Path(__file__).parents[4]
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


@contextmanager
def drawing(command: list[str]) -> Iterator[Draw]:
    """What the page draws, from one Node for all that is asked."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asking, answers = process.stdin, process.stdout

        def draw(*wanted: tuple[str, str]) -> list[Any]:
            """For each pair of a function and a text, its nodes as [tag, attributes, children]."""
            asking.write(f"{json.dumps(wanted)}\n")
            asking.flush()
            result: list[Any] = json.loads(answers.readline())
            return result

        yield draw
        asking.close()  # which ends it
