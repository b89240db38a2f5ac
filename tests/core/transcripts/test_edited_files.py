"""The changes by calls as git would print them."""

from claude_code_mcp.core.transcripts.edited_files import EditedFile, diff_of


def test_a_path_is_below_the_directory_and_stays_on_its_line() -> None:
    forged = "x.py\n@@ -1 +1 @@\n-a\n+b\x1b[2J"
    files = [EditedFile("/src/cart.py", ["@@ -1 +1 @@\n-a\n+b\n"]), EditedFile(f"/other/{forged}", ["@@ -1 +1 @@\n-c"])]
    lines = diff_of(files, "/src").split("\n")
    assert lines[:6] == ["diff --git a/cart.py b/cart.py", "--- a/cart.py", "+++ b/cart.py", "@@ -1 +1 @@", "-a", "+b"]
    assert [line for line in lines[6:] if line.startswith("@@")] == ["@@ -1 +1 @@"]
    assert lines[-2:] == ["@@ -1 +1 @@", "-c"]
    assert "\x1b" not in "\n".join(lines)
