"""What a prompt sets off in Claude Code by itself, before the model sees it: a slash command at its beginning, and
files and MCP resources that it mentions with `@`, which are read with nobody asked. Pure.

The reading is at least as generous as that of any supported version of Claude Code. What it finds and Claude Code does
not is at worst refused; the time is linear in the length of the prompt.
"""

import re
from collections.abc import Iterator

_INVISIBLE = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]*"
)
_COMMAND = re.compile(r"/([^\s/]+)(?=\s|$)")
# At the beginning, or behind a space or something that is not ASCII: an address such as me@example.org is none.
_QUOTED = re.compile(r'(?<![!-~])@"([^"]+)"')
_MENTION = re.compile(r"(?<![!-~])@([^\s\"]\S*)")
_OF_A_WORD = re.compile(r"[A-Za-z0-9_]")
_SERVER = re.compile(r"([\w.-]+):.")


def slash_command(prompt: str) -> str | None:
    """The name of the command that a prompt begins with; None for one that begins otherwise, as with a path."""
    beginning = _INVISIBLE.match(prompt)
    found = _COMMAND.match(prompt, beginning.end() if beginning is not None else 0)
    return None if found is None else found[1]


def mentioned_paths(prompt: str) -> Iterator[str]:
    """Everything behind an `@` that could be a path: as it stands, without what a sentence puts behind it, and without
    a range of lines."""
    for found in _QUOTED.finditer(prompt):
        yield from _readings(found[1])
    for word in _mentions(prompt):
        yield from _readings(word)


def mentioned_servers(prompt: str) -> Iterator[str]:
    """The names in front of a colon, as in `@server:resource`."""
    for word in _mentions(prompt):
        found = _SERVER.match(word)
        if found is not None:
            yield found[1]


def _mentions(prompt: str) -> Iterator[str]:
    for found in _MENTION.finditer(prompt):
        yield found[1]


def _readings(written: str) -> Iterator[str]:
    for reading in (written, written.partition("#")[0]):
        yield reading
        last = _OF_A_WORD.search(reading[::-1])
        yield reading[: len(reading) - last.start()] if last is not None else ""
