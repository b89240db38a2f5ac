"""What a call would do to a file, and which files are looked at for that."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.errors import PermissionDenied
from claude_code_mcp.core.model.question import FileChange
from claude_code_mcp.core.sessions.file_changes import MAX_BYTES, changed_file, file_change


def change(tool: str, directory: Path, path: Path, **fields: Any) -> FileChange | None:
    tool_input = {"notebook_path" if tool == "NotebookEdit" else "file_path": str(path), **fields}
    assert changed_file(tool, tool_input) == str(path)
    return file_change(tool, tool_input, str(path), [str(directory)], os.path.realpath)


def signs(found: FileChange | None) -> list[str]:
    assert found is not None
    return [line for line in found.diff.split("\n") if line[:1] in ("+", "-")]


def test_a_write_over_a_file_is_the_lines_that_differ(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\ntwo\nthree\n")
    assert signs(change("Write", tmp_path, file, content="one\n2\nthree\n")) == ["-two", "+2"]


def test_an_edit_is_shown_where_it_is(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\ntwo\nthree\n")
    found = change("Edit", tmp_path, file, old_string="wo\nth", new_string="wo!\nth")
    assert found is not None
    assert found.diff == "@@ -1,3 +1,3 @@\n one\n-two\n+two!\n three"
    edits = [{"old_string": "one", "new_string": "1"}, {"old_string": "1\n", "new_string": "1.\n"}]
    assert signs(change("MultiEdit", tmp_path, file, edits=edits)) == ["-one", "+1."]
    file.write_text("x x x\n")
    assert signs(change("Edit", tmp_path, file, old_string="x", new_string="y", replace_all=True)) == [
        "-x x x",
        "+y y y",
    ]


def test_an_edit_of_a_file_with_other_line_ends_is_found(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"one\r\ntwo\r\n")
    assert signs(change("Edit", tmp_path, file, old_string="one\ntwo", new_string="one\n2")) == ["-two", "+2"]


@pytest.mark.parametrize(
    "fields", [{"old_string": "zzz", "new_string": "a"}, {"old_string": "o", "new_string": "a"}, {}]
)
def test_an_edit_that_does_not_fit_the_file_has_no_change(tmp_path: Path, fields: dict[str, str]) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one two\n")
    assert change("Edit", tmp_path, file, **fields) is None


def test_where_there_is_no_file_there_is_no_change(tmp_path: Path) -> None:
    assert change("Write", tmp_path, tmp_path / "new.txt", content="x") is None
    assert changed_file("Write", "/x") is None
    assert changed_file("Write", {"file_path": "relative"}) is None


def test_incomparable_files_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    for content, words in (
        (b"\x00\x01", "text"),
        (b"\xff\xfe\xfa", "text"),
        (b"x" * (MAX_BYTES + 1), "too many"),
    ):
        file.write_bytes(content)
        found = change("Write", tmp_path, file, content="x")
        assert found is not None
        assert (found.diff, words in found.note) == ("", True)
    file.write_text("same\n")
    found = change("Write", tmp_path, file, content="same\n")
    assert found is not None
    assert "already" in found.note


def test_no_file_outside_of_the_sessions_directories_is_read(tmp_path: Path) -> None:
    inside, outside = tmp_path / "project", tmp_path / "elsewhere"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret.txt").write_text("secret\n")
    assert change("Write", inside, outside / "secret.txt", content="x") is None
    (inside / "link.txt").symlink_to(outside / "secret.txt")
    assert change("Write", inside, inside / "link.txt", content="x") is None
    (inside / "folder").symlink_to(outside)
    assert change("Write", inside, inside / "folder" / "secret.txt", content="x") is None
    assert change("Write", inside, inside / ".." / "elsewhere" / "secret.txt", content="x") is None


def test_a_link_that_is_put_there_after_the_check_is_not_followed(tmp_path: Path) -> None:
    inside, secret = tmp_path / "project", tmp_path / "secret.txt"
    inside.mkdir()
    secret.write_text("secret\n")
    file = inside / "a.txt"
    file.write_text("one\n")

    def readable(path: str) -> str:
        real = os.path.realpath(path)
        file.unlink()
        file.symlink_to(secret)
        return real

    assert file_change("Write", {"content": "x"}, str(file), [str(inside)], readable) is None


def test_unreadable_files_are_not_compared(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\n")

    def refused(path: str) -> str:
        raise PermissionDenied(f"{path} may not be read")

    assert file_change("Write", {"content": "x"}, str(file), [str(tmp_path)], refused) is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert change("Write", tmp_path, tmp_path / "pipe", content="x") is None


def test_thousands_of_edits_are_not_each_looked_for_in_a_long_file(tmp_path: Path) -> None:
    file, edits = tmp_path / "a.txt", [{"old_string": "b", "new_string": "b!"}, {"old_string": "b!", "new_string": "b"}]
    file.write_text("a\n" * (MAX_BYTES // 4) + "b")
    assert signs(change("MultiEdit", tmp_path, file, edits=[*edits, edits[0]]))
    assert change("MultiEdit", tmp_path, file, edits=[*(edits * 1000), edits[0]]) is None


def test_the_change_to_a_notebook_is_that_of_one_cell(tmp_path: Path) -> None:
    file = tmp_path / "n.ipynb"
    cells = [{"id": "first", "source": ["import math\n", "math.pi\n"]}, {"source": "x = 1\n"}]
    file.write_text(json.dumps({"cells": cells}))

    def edit(**fields: Any) -> FileChange | None:
        return change("NotebookEdit", tmp_path, file, **fields)

    replaced = edit(cell_id="first", new_source="import math\nmath.e\n")
    assert signs(replaced) == ["-math.pi", "+math.e"]
    assert replaced is not None
    assert re.search(r"(?i)\bcell\b.*\b1\b.*\b2\b", replaced.note)
    assert signs(edit(cell_id="cell-1", new_source="x = 2\n")) == ["-x = 1", "+x = 2"]
    assert signs(edit(cell_id="first", edit_mode="insert", new_source="y\n")) == ["+y"]
    assert signs(edit(cell_id="cell-1", edit_mode="delete", new_source="")) == ["-x = 1"]
    assert edit(cell_id="cell-2", new_source="x") is None
    assert edit(cell_id="nobody", new_source="x") is None
    for broken in ("{", "[]", '{"cells": 3}', '{"cells": [3]}', '{"cells": [{"id": "first"}]}', "[" * 100_000):
        file.write_text(broken)
        assert edit(cell_id="first", new_source="x") is None
