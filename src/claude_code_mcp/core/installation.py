"""Detects how this package was installed, and gives the commands that add an extra and that uninstall it.

Detected from traces of the installers: `uv tool` and pipx leave a file in the environment, uvx is known by its
location, pip and uv record the package's origin. Nothing is run, and the readers are imported only when needed: every
start of a server imports this module.
"""

import importlib.util
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PACKAGE = "claude-code-mcp"
_CACHE = re.compile(r"(archive|environments|builds)-v\d+")
"""The directories of uv's cache that contain environments."""
_EXTRAS = re.compile(r"\[([\w\s,.-]{0,200})\]")


def extra_command(extra: str, prefix: str = sys.prefix, origin: Mapping[str, Any] | None = None) -> str:
    """The command that adds an extra to this installation and keeps its other extras; `origin` is the package's source,
    if known."""
    origin = _origin() if origin is None else origin
    if is_cached(prefix):
        return f"uvx --from {_quoted(requirement({extra, *_bundled()}, origin))} {PACKAGE}"
    receipt, pipx = Path(prefix, "uv-receipt.toml"), Path(prefix, "pipx_metadata.json")
    # Both recreate the environment: extras that are not named again would be lost.
    if receipt.is_file():
        return f"uv tool install {_quoted(requirement({extra, *_extras_of_receipt(receipt)}, origin))}"
    if pipx.is_file():
        return f"pipx install --force {_quoted(requirement({extra, *_extras_of_pipx(pipx)}, origin))}"
    flag = "-e " if (origin.get("dir_info") or {}).get("editable") else ""
    return f"{_pip(prefix, 'install')} {flag}{_quoted(requirement({extra}, origin))}"


def uninstall_command(prefix: str = sys.prefix) -> str:
    """The command that removes the package from this environment."""
    if is_cached(prefix):
        return f"uv cache clean {PACKAGE}"
    if Path(prefix, "uv-receipt.toml").is_file():
        return f"uv tool uninstall {PACKAGE}"
    if Path(prefix, "pipx_metadata.json").is_file():
        return f"pipx uninstall {PACKAGE}"
    return f"{_pip(prefix, 'uninstall')} {PACKAGE}"


def is_cached(prefix: str) -> bool:
    """Whether the environment is in uv's cache, which may be cleared at any time."""
    return any(_CACHE.fullmatch(part) for part in Path(prefix).parts)


def requirement(extras: set[str], origin: Mapping[str, Any] | None = None) -> str:
    """The requirement to install: the directory or repository that this was installed from, otherwise the package
    name."""
    suffix = f"[{','.join(sorted(extras))}]" if extras else ""
    origin = _origin() if origin is None else origin
    url = origin.get("url")
    if not url:
        return f"{PACKAGE}{suffix}"
    if "vcs_info" in origin:
        return f"{PACKAGE}{suffix} @ {origin['vcs_info'].get('vcs', 'git')}+{url}"
    if "dir_info" not in origin:
        return f"{PACKAGE}{suffix} @ {url}"
    from urllib.parse import unquote, urlsplit  # noqa: PLC0415

    return (unquote(urlsplit(url).path) if url.startswith("file:") else url) + suffix


def _origin() -> dict[str, Any]:
    """The package's PEP 610 origin; empty for an index."""
    from importlib import metadata  # noqa: PLC0415

    try:
        origin = json.loads(metadata.distribution(PACKAGE).read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return {}
    return origin if isinstance(origin, dict) else {}


def _bundled() -> set[str]:
    return {"cli"} if importlib.util.find_spec("claude_agent_sdk") is not None else set()


def _extras_of_receipt(file: Path) -> set[str]:
    import tomllib  # noqa: PLC0415

    try:
        wanted = tomllib.loads(file.read_text(encoding="utf-8"))["tool"]["requirements"]
        return {str(extra) for entry in wanted if entry.get("name") == PACKAGE for extra in entry.get("extras") or ()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()


def _extras_of_pipx(file: Path) -> set[str]:
    try:
        found = _EXTRAS.search(json.loads(file.read_text(encoding="utf-8"))["main_package"]["package_or_url"])
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    return {part.strip() for part in found[1].split(",") if part.strip()} if found else set()


def _pip(prefix: str, action: str) -> str:
    """`pip ACTION` if the `pip` on PATH belongs to this environment, otherwise the same through its interpreter's
    path."""
    scripts = Path(prefix, "Scripts" if os.name == "nt" else "bin")
    if importlib.util.find_spec("pip") is None:
        return f"uv pip {action} --python {_quoted(sys.executable)}"  # only uv makes environments without pip
    found = shutil.which("pip")
    is_own = found is not None and Path(found).parent == scripts
    return f"pip {action}" if is_own else f"{_quoted(sys.executable)} -m pip {action}"


def _quoted(text: str) -> str:
    return f'"{text}"' if os.name == "nt" else shlex.quote(text)
