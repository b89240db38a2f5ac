"""The changes by calls: since a turn, and as git would print them."""

from claude_code_mcp.core.transcripts.conversation import ConversationTurn, Item
from claude_code_mcp.core.transcripts.conversation_pages import ConversationPage, TurnPart
from claude_code_mcp.core.transcripts.edited_files import (
    MAX_LENGTH,
    EditedFile,
    EditedFiles,
    EditingTurn,
    ReadPage,
    diff_of,
    edited_files,
)


def test_a_path_is_below_the_directory_and_stays_on_its_line() -> None:
    forged = "x.py\n@@ -1 +1 @@\n-a\n+b\x1b[2J"
    files = [EditedFile("/src/cart.py", ["@@ -1 +1 @@\n-a\n+b\n"]), EditedFile(f"/other/{forged}", ["@@ -1 +1 @@\n-c"])]
    lines = diff_of(files, "/src").split("\n")
    assert lines[:6] == ["diff --git a/cart.py b/cart.py", "--- a/cart.py", "+++ b/cart.py", "@@ -1 +1 @@", "-a", "+b"]
    assert [line for line in lines[6:] if line.startswith("@@")] == ["@@ -1 +1 @@"]
    assert lines[-2:] == ["@@ -1 +1 @@", "-c"]
    assert "\x1b" not in "\n".join(lines)


def _edit(path: str, diff: str) -> Item:
    return Item(id=path + diff, kind="tool", name="Edit", input={"file_path": path}, status="ok", diff=diff)


def _read(*pages: tuple[tuple[int, str | None, list[Item]], ...]) -> ReadPage:
    """Reads these pages, the last one first."""

    async def read(before: str | None) -> ConversationPage:
        at = len(pages) - 1 if before is None else int(before)
        parts = [TurnPart(number, ConversationTurn(prompt=prompt, items=items)) for number, prompt, items in pages[at]]
        return ConversationPage(tuple(parts), str(at - 1) if at else None)

    return read


async def test_edits_since_a_turn_that_is_divided_between_pages() -> None:
    read = _read(
        ((1, "Begin", [_edit("a", "1")]), (2, "Talk", []), (3, "Divide", [_edit("a", "2")])),
        ((3, None, [_edit("b", "3")]), (4, "Talk more", [])),
    )
    turns = [EditingTurn(1, "Begin", False), EditingTurn(3, "Divide", False)]
    everything = [EditedFile("a", ["1", "2"]), EditedFile("b", ["3"])]
    assert await edited_files(read) == EditedFiles(everything, False, turns)
    later = [EditedFile("a", ["2"]), EditedFile("b", ["3"])]
    assert await edited_files(read, since=2) == EditedFiles(later, False, turns)
    assert await edited_files(read, since=4) == EditedFiles([], False, turns)
    assert await edited_files(read, since=1, until=2) == EditedFiles([EditedFile("a", ["1"])], False, turns)
    assert await edited_files(read, since=3, until=3) == EditedFiles(later, False, turns)


async def test_edits_are_cut_only_where_the_limit_was_reached() -> None:
    long = "x" * (MAX_LENGTH // 2)
    read = _read(((1, "One", [_edit("a", long)]), (2, "Two", [_edit("b", long)]), (3, "Three", [_edit("c", long)])))
    files, cut, turns = await edited_files(read)
    assert ([file.path for file in files], cut) == (["b", "c"], True)
    assert [turn.number for turn in turns] == [1, 2, 3]
    files, cut, _ = await edited_files(read, since=2)
    assert ([file.path for file in files], cut) == (["b", "c"], False)
    files, cut, _ = await edited_files(read, since=1, until=1)
    assert ([file.path for file in files], cut) == (["a"], False), "later turns do not use up the limit"
