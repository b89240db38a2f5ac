"""Where other programs keep their MCP servers, for `mcp import`. Their files are read and never changed."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...claude_home import user_file
from ...errors import InvalidArgument
from ...hub.config_dialects import in_our_words, input_defaults, read_text, section_of
from ...json_text import decode_with_comments

PROGRAMS = ("claude-desktop", "claude-code", "cursor", "vscode", "windsurf", "gemini")


def files_of(source: str, environment: Mapping[str, str], project: Path) -> list[Path]:
    """The files of a program, those of the project first; or the one file that was named instead."""
    home = Path(environment.get("HOME") or environment.get("USERPROFILE") or Path.home())
    data = _application_data(environment, home)
    files = {
        "claude-desktop": [data / "Claude" / "claude_desktop_config.json"],
        "claude-code": [user_file(environment)],
        "cursor": [project / ".cursor" / "mcp.json", home / ".cursor" / "mcp.json"],
        "vscode": [
            project / ".vscode" / "mcp.json",
            data / "Code" / "User" / "mcp.json",
            data / "Code" / "User" / "settings.json",
        ],
        "windsurf": [home / ".codeium" / "windsurf" / "mcp_config.json"],
        "gemini": [project / ".gemini" / "settings.json", home / ".gemini" / "settings.json"],
    }
    return files.get(source) or [Path(source)]


def _application_data(environment: Mapping[str, str], home: Path) -> Path:
    if sys.platform == "win32":
        return Path(environment.get("APPDATA") or home / "AppData" / "Roaming")
    if sys.platform == "darwin":
        return home / "Library" / "Application Support"
    return Path(environment.get("XDG_CONFIG_HOME") or home / ".config")


def entries_of(source: str, environment: Mapping[str, str], project: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """The entries of a program in our words, by name, each with its file; the first file that has a name counts.

    Raises InvalidArgument where there is no file, or one cannot be read.
    """
    files = files_of(source, environment, project)
    present = [file for file in files if file.exists()]
    if not present:
        known = "" if source in PROGRAMS else f" Known programs: {', '.join(PROGRAMS)}."
        raise InvalidArgument(f"There is no {' and no '.join(map(str, files))}.{known}")
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    for file in present:
        for name, entry in _entries_in(file).items():
            found.setdefault(name, (file, entry))
    return found


def _entries_in(file: Path) -> dict[str, dict[str, Any]]:
    try:
        content = decode_with_comments(read_text(file))
    except OSError as error:
        raise InvalidArgument(f"{file} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise InvalidArgument(f"{file} cannot be read: {error}.") from None
    section = section_of(content)[1] if isinstance(content, dict) else None
    if not isinstance(section, dict):
        raise InvalidArgument(f"{file} has no MCP servers that can be read.")
    defaults = input_defaults(content)
    return {name: in_our_words(entry, defaults) for name, entry in section.items() if isinstance(entry, dict)}
