"""Reads the part of YAML that the files in `deploy` are written in, so that the tests need no library for it.

Block mappings and sequences, flow ones on a single line, plain and double-quoted scalars, comments, documents, and
anchors on mappings with merge keys. Anything else is refused: a file must not mean something else to a real reader.
"""

import json
import re
from typing import Any

_KEY = re.compile(r'("[^"]*"|[^\s"\[\]{}#&*!|>,][^"#]*?):(?:\s+(.*))?$')
_PLAIN = re.compile(r'[^\[\]{},"&*!|>]+')
_WORDS = {"true": True, "false": False, "null": None, "": None}


class NotUnderstood(ValueError):
    """What the file has is not in the part of YAML that is read here."""


def read_documents(text: str) -> list[Any]:
    """Every document of a file."""
    parts = re.split(r"^---$", text, flags=re.MULTILINE)
    return [_Reader(part).document() for part in parts if _lines(part)]


def read_yaml(text: str) -> Any:
    """The only document of a file."""
    (document,) = read_documents(text)
    return document


def _lines(text: str) -> list[tuple[int, str]]:
    """Indentation and content of each line that has any; comments are cut off."""
    found = []
    for line in text.splitlines():
        content = re.sub(r'^((?:[^"#]|"(?:[^"\\]|\\.)*"|(?<=\S)#)*?)\s*(?:(?:^|\s)#.*)?$', r"\1", line).rstrip()
        if "\t" in content:
            raise NotUnderstood(f"a tab: {line!r}")
        if content.strip():
            found.append((len(content) - len(content.lstrip()), content.strip()))
    return found


class _Reader:
    def __init__(self, text: str) -> None:
        self._lines = _lines(text)
        self._at = 0
        self._anchors: dict[str, dict[str, Any]] = {}

    def document(self) -> Any:
        value = self._block(self._lines[0][0])
        if self._at != len(self._lines):
            raise NotUnderstood(f"the indentation of {self._lines[self._at][1]!r}")
        return value

    def _block(self, indent: int) -> Any:
        if self._lines[self._at][1].startswith("- "):
            return self._sequence(indent)
        return self._mapping(indent)

    def _here(self, indent: int) -> str | None:
        """The content of the next line, if it belongs to the block of this indentation."""
        if self._at < len(self._lines) and self._lines[self._at][0] == indent:
            return self._lines[self._at][1]
        return None

    def _sequence(self, indent: int) -> list[Any]:
        items = []
        while (line := self._here(indent)) is not None and line.startswith("- "):
            rest = line[2:].lstrip()
            inner = indent + len(line) - len(rest)
            if _KEY.fullmatch(rest) and not rest.startswith(("[", "{")):
                self._lines[self._at] = (inner, rest)  # the rest of the line is the first of a mapping
                items.append(self._mapping(inner))
            else:
                self._at += 1
                items.append(_flow(rest))
        return items

    def _mapping(self, indent: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        while (line := self._here(indent)) is not None and not line.startswith("- "):
            found = _KEY.fullmatch(line)
            if found is None:
                raise NotUnderstood(line)
            key, rest = found[1].strip('"'), found[2] or ""
            self._at += 1
            if key == "<<":
                merged |= self._anchors[rest.removeprefix("*")]
            elif key in values:
                raise NotUnderstood(f"{key} twice")
            elif rest and not rest.startswith("&"):
                values[key] = _flow(rest)
            else:
                values[key] = self._nested(indent)
                if rest:
                    self._anchors[rest.removeprefix("&")] = values[key]
        return merged | values

    def _nested(self, indent: int) -> Any:
        if self._at < len(self._lines):
            deeper, line = self._lines[self._at]
            if deeper > indent or (deeper == indent and line.startswith("- ")):
                return self._block(deeper)
        return None


def _flow(text: str) -> Any:
    value, rest = _flow_value(text.strip())
    if rest.strip():
        if text.startswith(("[", "{", '"')):
            raise NotUnderstood(text)
        return text.strip()  # a plain scalar may have commas and brackets after its beginning
    return value


def _flow_value(text: str) -> tuple[Any, str]:
    if text.startswith("["):
        return _flow_items(text[1:], "]")
    if text.startswith("{"):
        pairs, rest = _flow_items(text[1:], "}")
        return dict(pairs), rest
    if text.startswith('"'):
        value, end = json.JSONDecoder().raw_decode(text)
        return value, text[end:]
    found = _PLAIN.match(text)
    if found is None or text.startswith(("'", "%", "@", "`")):
        raise NotUnderstood(text)
    return _scalar(found[0].strip()), text[found.end() :]


def _flow_items(text: str, end: str) -> tuple[list[Any], str]:
    items: list[Any] = []
    text = text.lstrip()
    while not text.startswith(end):
        if end == "}":
            key, _, text = text.partition(":")
            value, text = _flow_value(text.lstrip())
            items.append((key.strip(' "'), value))
        else:
            value, text = _flow_value(text)
            items.append(value)
        text = text.lstrip()
        if text.startswith(","):
            text = text[1:].lstrip()
        elif not text.startswith(end):
            raise NotUnderstood(text)
    return items, text[1:]


def _scalar(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if re.fullmatch(r"-?(0|[1-9][0-9]*)", text):
        return int(text)
    if re.fullmatch(r"(?i)[0-9][0-9_]*\.[0-9]*|0x[0-9a-f]+|0o?[0-7]+|yes|no|on|off|y|n|~|[0-9]+:[0-9:]+", text):
        raise NotUnderstood(f"{text}: not every reader takes it for the same")
    return text
