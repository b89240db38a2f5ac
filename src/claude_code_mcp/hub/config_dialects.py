"""How other programs write the same configuration, and what that is in ours.

VS Code has `servers` beside `inputs`, and asks a person for `${input:id}`; here that is the variable of the same name
(`${input:api-key}` is `${API_KEY}`), or the default of the input. Windsurf has `serverUrl`, Gemini CLI `httpUrl`, and
VS Code and Cursor `envFile`. Everything but `read_env_file` is pure.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..private_files import read_regular

_INPUT = re.compile(r"\$\{input:([^{}]*)\}")
_NO_LETTER = re.compile(r"[^A-Za-z0-9]")
_MAX_BYTES = 64 << 20
_MAX_ENV_BYTES = 1 << 20
SECTIONS = ("mcpServers", "servers")
"""The keys under which servers are configured, the first that is there counts."""


def section_of(content: Mapping[str, Any]) -> tuple[str, Any]:
    """The key under which a file has its servers, and what stands there."""
    nested = content.get("mcp")  # VS Code's settings.json has all of it one level down
    if isinstance(nested, dict) and not any(key in content for key in SECTIONS):
        content = nested
    key = next((key for key in SECTIONS if key in content), SECTIONS[0])
    return key, content.get(key, {})


def input_defaults(content: Mapping[str, Any]) -> dict[str, str]:
    """The defaults of the `inputs` that have one, by id."""
    inputs = content.get("inputs")
    found = [each for each in inputs if isinstance(each, dict)] if isinstance(inputs, list) else []
    return {str(each.get("id")): each["default"] for each in found if isinstance(each.get("default"), str)}


def in_our_words(entry: Mapping[str, Any], defaults: Mapping[str, str]) -> dict[str, Any]:
    """An entry of another program, or one of ours, as one of ours."""
    ours: dict[str, Any] = _without_inputs(dict(entry), defaults)
    for key, type_ in (("serverUrl", None), ("httpUrl", "http")):
        if key in ours and "url" not in ours and "command" not in ours:
            ours["url"] = ours.pop(key)
            if type_ is not None:
                ours.setdefault("type", type_)
    return ours


def _without_inputs(value: Any, defaults: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _INPUT.sub(lambda found: _variable(found[1], defaults.get(found[1])), value)
    if isinstance(value, dict):
        return {key: _without_inputs(item, defaults) for key, item in value.items()}
    return [_without_inputs(item, defaults) for item in value] if isinstance(value, list) else value


def _variable(input_id: str, default: str | None) -> str:
    name = _NO_LETTER.sub("_", input_id).upper()
    name = f"_{name}" if not name or name[0].isdigit() else name
    return f"${{{name}:-{default}}}" if default is not None and "}" not in default else f"${{{name}}}"


# -- files ------------------------------------------------------------------------------------------------------------


def read_text(file: Path, most: int = _MAX_BYTES) -> str:
    """The text of a file. OSError for one that is no regular file, ValueError for one that is no text."""
    return read_regular(file, most).decode("utf-8-sig")


def read_env_file(file: Path) -> dict[str, str]:
    """The variables of a file with `NAME=value` lines; `export`, quotes and comments as usual. Raises OSError and
    ValueError."""
    found: dict[str, str] = {}
    for line in read_text(file, _MAX_ENV_BYTES).splitlines():
        name, separator, value = line.strip().removeprefix("export ").partition("=")
        if separator and name.strip() and not name.startswith("#"):
            found[name.strip()] = _unquoted(value.strip())
    return found


def _unquoted(value: str) -> str:
    if value[:1] in ('"', "'"):
        end = value.find(value[0], 1)
        return value[1:end] if end > 0 else value
    return value.partition(" #")[0].rstrip()
