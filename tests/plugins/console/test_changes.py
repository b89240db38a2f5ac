"""Everything that a session has changed, by file, and the change that a question is about; on the real CLI."""

import json
import subprocess
from typing import Any
from urllib.parse import quote

import pytest

from claude_code_mcp.core.transcripts.edited_files import MAX_LENGTH
from claude_code_mcp.plugins.console.change_routes import files_of_diff
from claude_code_mcp.testing.script import script, text, tool
from tests.support.system_packages import require

from .conftest import Console
from .console_client import Browser
from .test_conversation import answer, ended, question_of, say, start

GIT = """ a.py | 2 +-
 3 files changed

diff --git a/a.py b/a.py
index 1..2 100644
--- a/a.py
+++ b/a.py
@@ -1,2 +1,2 @@
-x
+y
 z
diff --git a/old name.py b/new name.py
similarity index 90%
rename from old name.py
rename to new name.py
--- a/old name.py
+++ b/new name.py
@@ -1 +1 @@
---- no head
+++++ no head
diff --git a/gone b/gone
deleted file mode 100644
--- a/gone
+++ /dev/null
@@ -1 +0,0 @@
-last
diff --git a/picture.png b/picture.png
new file mode 100644
Binary files /dev/null and b/picture.png differ
"""


def test_git_diff_is_split_by_file() -> None:
    files, cut = files_of_diff(GIT)
    assert not cut
    assert [(file.path, file.note) for file in files] == [
        ("a.py", ""),
        ("new name.py", "renamed"),
        ("gone", "deleted"),
        ("picture.png", "binary file, or only the file mode changed"),
    ]
    assert files[0].diffs == ["@@ -1,2 +1,2 @@\n-x\n+y\n z"]
    assert files_of_diff("") == ([], False), "as after a merge"
    assert files[1].diffs == ["@@ -1 +1 @@\n---- no head\n+++++ no head"]
    assert files[3].diffs == []


def test_too_many_changes_show_only_whole_files() -> None:
    part = "diff --git a/{0} b/{0}\n--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-" + "x" * (MAX_LENGTH // 3) + "\n+y\n"
    files, cut = files_of_diff("".join(part.format(name) for name in "abcd"))
    assert ([file.path for file in files], cut) == (["a", "b"], True)


def test_a_question_about_a_write_has_the_change_and_the_session_has_all_of_them(
    console: Console, alice: Browser
) -> None:
    kept, made = console.project / "kept.txt", console.project / "made.txt"
    kept.write_text("one\ntwo\nthree\n")
    steps = (
        tool("Write", file_path=str(made), content="new\n"),
        tool("Read", file_path=str(kept)),
        tool("Write", file_path=str(kept), content="one\n2\nthree\n"),
        tool("Edit", file_path=str(kept), old_string="three", new_string="3"),
        text("Done."),
    )
    session = start(alice, console, script("Change.", *steps))
    changes = []
    for _ in range(3):
        question = question_of(alice, session)
        changes.append(question["fileDiff"])
        assert answer(alice, question, decision="allow").status == 200
    ended(alice, session)
    assert changes == [
        "",
        "@@ -1,3 +1,3 @@\n one\n-two\n+2\n three",
        "@@ -1,3 +1,3 @@\n one\n 2\n-three\n+3",
    ]
    shown = alice.get(f"/api/sessions/{session}/changes").json
    assert (shown["source"], shown["cut"]) == ("conversation", False)
    files = {file["path"]: file["diffs"] for file in shown["files"]}
    assert list(files) == [str(made), str(kept)]
    assert files[str(made)] == ["@@ -0,0 +1,1 @@\n+new"]
    assert [sum(line.startswith(("+", "-")) for line in diff.split("\n")) for diff in files[str(kept)]] == [2, 2]
    assert console.browser("bob").get(f"/api/sessions/{session}/changes").status == 404
    amount = alice.get(f"/api/sessions/{session}/changes/amount").json
    assert amount == {"files": 2, "added": 3, "removed": 2, "cut": False}
    assert console.browser("bob").get(f"/api/sessions/{session}/changes/amount").status == 404


def test_changes_are_shown_since_a_turn_and_of_one_turn(console: Console, alice: Browser) -> None:
    first, second = console.project / "first.txt", console.project / "second.txt"
    write = tool("Write", file_path=str(first), content="one\n")
    session = start(alice, console, script("Begin.", write, text("Done.")), permissionMode="acceptEdits")
    ended(alice, session)
    for prompt, step in (
        ("Change.", tool("Edit", file_path=str(first), old_string="one", new_string="1")),
        ("Add.", tool("Write", file_path=str(second), content="two\n")),
        ("Only talk.", text("Talked.")),
    ):
        ended(alice, say(alice, session, script(prompt, step, text("Done."))))
    path = f"/api/sessions/{session}/changes"

    def changed(since: str, turn: str = "") -> dict[str, list[str]]:
        shown = alice.get(f"{path}?since={since}&turn={turn}").json
        assert [(turn["number"], turn["isLast"]) for turn in shown["turns"]] == [(1, False), (2, False), (3, False)]
        assert [turn["prompt"].split()[0] for turn in shown["turns"]] == ["Begin.", "Change.", "Add."]
        return {file["path"]: file["diffs"] for file in shown["files"]}

    begun, edited, added = "@@ -0,0 +1,1 @@\n+one", "@@ -1,1 +1,1 @@\n-one\n+1", "@@ -0,0 +1,1 @@\n+two"
    assert changed("") == {str(first): [begun, edited], str(second): [added]}
    assert changed("2") == {str(first): [edited], str(second): [added]}
    assert changed("3") == {str(second): [added]}
    assert changed("4") == {}
    assert changed("", "1") == {str(first): [begun]}
    assert changed("", "2") == {str(first): [edited]}
    assert changed("", "3") == {str(second): [added]}
    assert changed("", "4") == {}
    for query in ("since=0", "turn=0", "since=1&turn=1"):
        assert alice.get(f"{path}?{query}").status == 400, query
    assert console.browser("bob").get(f"{path}?since=2").status == 404


def test_changes_to_a_notebook_are_shown_by_cell(console: Console, alice: Browser) -> None:
    file = console.project / "n.ipynb"
    cell: dict[str, Any] = {"cell_type": "code", "id": "c1", "metadata": {}, "outputs": [], "execution_count": None}
    cells = [{**cell, "source": ["x = 1\n", "y = 2"]}]
    file.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    at = {"notebook_path": str(file), "cell_id": "c1"}
    steps = (
        tool("Read", file_path=str(file)),
        tool("NotebookEdit", **at, new_source="x = 1\ny = 3"),
        tool("NotebookEdit", **at, new_source="# New", edit_mode="insert", cell_type="markdown"),
        tool("NotebookEdit", **at, new_source="", edit_mode="delete"),
        text("Done."),
    )
    session = start(alice, console, script("Change it.", *steps), permissionMode="acceptEdits")
    ended(alice, session)
    shown = alice.get(f"/api/sessions/{session}/changes").json
    assert {row["path"].removeprefix(f"{file}, "): row["diffs"] for row in shown["files"]} == {
        "cell c1": [
            "@@ -1,2 +1,2 @@\n x = 1\n-y = 2\n\\ No newline at end of file\n+y = 3\n\\ No newline at end of file",
            "@@ -1,2 +0,0 @@\n-x = 1\n-y = 3\n\\ No newline at end of file",
        ],
        "new cell after cell c1": ["@@ -0,0 +1,1 @@\n+# New\n\\ No newline at end of file"],
    }


@pytest.mark.soak  # with its merge: below
def test_worktree_session_shows_all_changes(console: Console, alice: Browser) -> None:
    require("git")
    git = ["git", "-C", str(console.project), "-c", "user.name=A", "-c", "user.email=a@example.com"]
    if not (console.project / ".git").exists():
        subprocess.run([*git, "init", "-q"], check=True)
    (console.project / "tracked.txt").write_text("one\n")
    subprocess.run([*git, "add", "tracked.txt"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "Begin"], check=True)
    command = tool("Bash", command="echo two >> tracked.txt; echo new > untracked.txt")
    write = tool("Write", file_path="${cwd}/written.txt", content="written\n")
    session = start(alice, console, script("Change.", command, write, text("Done.")), worktree=True)
    for _ in range(2):
        assert answer(alice, question_of(alice, session), decision="allow").status == 200
    ended(alice, session)
    shown = alice.get(f"/api/sessions/{session}/changes").json
    assert shown["source"] == "worktree"
    found = {file["path"]: (file["note"], file["diffs"][0].split("\n")[1:]) for file in shown["files"]}
    assert found == {
        "tracked.txt": ("", [" one", "+two"]),
        "untracked.txt": ("new", ["+new"]),
        "written.txt": ("new", ["+written"]),
    }
    assert [(turn["number"], turn["isLast"]) for turn in shown["turns"]] == [(1, True)]
    recorded = alice.get(f"/api/sessions/{session}/changes?since=1").json
    assert recorded["source"] == "conversation"
    assert [file["path"].rpartition("/")[2] for file in recorded["files"]] == ["written.txt"]


def _in_worktree(console: Console, alice: Browser, command: str) -> str:
    """A session in a worktree whose turn has run this; its id."""
    require("git")
    git = ["git", "-C", str(console.project)]
    if not (console.project / ".git").exists():
        subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
    for name, value in (("user.name", "A"), ("user.email", "a@example.com")):
        subprocess.run([*git, "config", name, value], check=True)
    (console.project / "tracked.txt").write_text("one\n")
    subprocess.run([*git, "add", "tracked.txt"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "Begin"], check=True)
    session = start(alice, console, script("Change.", tool("Bash", command=command), text("Done.")), worktree=True)
    assert answer(alice, question_of(alice, session), decision="allow").status == 200
    ended(alice, session)
    return session


@pytest.mark.soak
def test_a_worktree_is_committed_merged_and_discarded_only_as_it_was_shown(console: Console, alice: Browser) -> None:
    session = _in_worktree(console, alice, "echo merged > merged.txt")
    path = f"/api/sessions/{session}/work"
    plan = alice.get(path).json
    assert (plan["uncommitted"], plan["files"], plan["refusal"]) == (1, ["merged.txt"], "")
    assert (plan["remote"], plan["program"]) == (None, "gh")
    repository = ["git", "-C", str(console.project)]
    subprocess.run([*repository, "remote", "add", "origin", "https://gitlab.example/a/b.git"], check=True)
    assert alice.get(path).json["program"] == "glab"
    subprocess.run([*repository, "remote", "remove", "origin"], check=True)
    bob = console.browser("bob")
    assert bob.get(path).status == 404
    assert bob.post(path, {"action": "merge", "agreed": plan["digest"], "message": "Mine"}).status == 404
    for body in (
        {"action": "merge", "message": "Without a look"},
        {"action": "merge", "agreed": plan["digest"]},  # there is something to commit, and no message
        {"action": "pull_request", "agreed": plan["digest"], "message": "Title"},
        {"action": "pull_request", "agreed": plan["digest"], "message": "Title", "remote": "github.com/a/b"},
        {"action": "push"},
    ):
        assert alice.post(path, body).status == 400, body
    assert alice.post(path, {"action": "merge", "agreed": "a:b:c", "message": "Other"}).status == 403
    assert alice.post(path, {"action": "discard", "lost": "nothing"}).status == 403
    assert not (console.project / "merged.txt").exists()
    plan = alice.get(path).json
    done = alice.post(path, {"action": "commit", "agreed": plan["digest"], "message": "All"})
    assert (done.status, done.json["message"][:24]) == (200, "Everything is committed,")
    plan = alice.get(path).json
    assert (plan["uncommitted"], plan["commits"]) == (0, 1)
    assert "merged into" in alice.post(path, {"action": "merge", "agreed": plan["digest"]}).json["message"]
    assert (console.project / "merged.txt").read_text() == "merged\n"
    lost = alice.get(path).json["lost"]
    assert "removed" in alice.post(path, {"action": "discard", "lost": lost}).json["message"]


def test_only_text_files_below_the_session_s_directory_are_shown(console: Console, alice: Browser) -> None:
    (console.project / "sub").mkdir(exist_ok=True)
    (console.project / "sub" / "shown.txt").write_text("shown\n")
    (console.project / "binary").write_bytes(b"\0\1")
    outside = console.project.parent / "outside.txt"
    outside.write_text("secret\n")
    link = console.project / "link.txt"
    link.unlink(missing_ok=True)
    link.symlink_to(outside)
    session = start(alice, console, script("Nothing.", text("Done.")))
    ended(alice, session)

    def read(browser: Browser, path: str) -> Any:
        return browser.get(f"/api/sessions/{session}/file?path={quote(path)}")

    assert read(alice, "sub/shown.txt").json == {"path": "sub/shown.txt", "text": "shown\n"}
    assert read(alice, str(console.project / "sub" / "shown.txt")).json["path"] == "sub/shown.txt"
    assert read(console.browser("bob"), "sub/shown.txt").status == 404
    refusals = {
        path: read(alice, path).json["error"]["message"]
        for path in (
            "../outside.txt",
            str(outside),
            "link.txt",
            "sub/../../outside.txt",
            "nobody.txt",
            "sub",
            "/etc/passwd",
        )
    }
    # One answer for all of them: it does not tell what there is elsewhere.
    assert set(refusals.values()) == {
        "There is no such file in the session's directory, or you are not allowed to read it."
    }
    assert "not text" in read(alice, "binary").json["error"]["message"]
