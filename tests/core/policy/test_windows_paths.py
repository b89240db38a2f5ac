"""Policy and descriptions by the path rules of Windows, on any platform."""

import ntpath
from typing import Any

import pytest

from claude_code_mcp.core.errors import InvalidArgument, PermissionDenied
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.model.paths import POSIX, WINDOWS
from claude_code_mcp.core.policy.admission import Admission
from claude_code_mcp.core.policy.policy import Profile
from claude_code_mcp.core.policy.rules import Decision, ToolCall, judge, parse_rule
from claude_code_mcp.core.questions.presentation import describe
from tests.support.tables import every_row

ALLOW, DENY, ASK = Decision.ALLOW, Decision.DENY, Decision.ASK


def resolve(path: str) -> str:
    """A disk without links, whose names are spelled as they were given."""
    return ntpath.normpath(path.replace("~", r"C:\Users\me", 1) if path.startswith("~") else path)


@every_row(
    ("path", "root", "below"),
    [
        (r"C:\src\app", r"C:\src", True),
        (r"C:\src", r"C:\src", True),
        (r"c:\SRC\App", r"C:\src", True),
        ("C:/src/app", r"C:\src", True),
        (r"C:\src\app", "C:/src/", True),
        (r"C:\src-old", r"C:\src", False),
        (r"D:\src\app", r"C:\src", False),
        (r"C:\anything", "C:\\", True),
        (r"D:\anything", "C:\\", False),
        (r"\\server\share\app", r"\\server\share", True),
        (r"\\SERVER\Share\app", r"//server/share", True),
        (r"\\server\share2\app", r"\\server\share", False),
        (r"\\?\C:\src\app", r"C:\src", True),
        (r"\\?\UNC\server\share\app", r"\\server\share", True),
        (r"C:\src\..\windows", r"C:\src", False),
    ],
)
def test_paths_below_a_root(path: str, root: str, below: bool) -> None:
    assert (WINDOWS.below(path, root) is not None) is below


def test_backslashes_and_case_are_parts_of_names_elsewhere() -> None:
    assert POSIX.below(r"/srv\app", "/srv") is None
    assert POSIX.below("/SRV/app", "/srv") is None
    assert POSIX.below("/srv/app", "/srv") == ["app"]


def admission(*roots: str) -> Admission:
    return Admission(Profile(roots=roots), resolve, r"C:\src", paths=WINDOWS)


@every_row(
    ("cwd", "really"),
    [
        (r"C:\src\app", r"C:\src\app"),
        ("c:/src/app", r"c:\src\app"),
        ("app", r"C:\src\app"),
        (r"app\..\other", r"C:\src\other"),
        (r"C:app", r"C:\src\app"),
        (r"\src\app", r"C:\src\app"),
        (".", r"C:\src"),
    ],
)
def test_a_directory_below_a_root_is_admitted(cwd: str, really: str) -> None:
    assert admission(".").admit(SessionOptions(cwd=cwd)).cwd == really


@every_row(
    "cwd", [r"C:\windows", r"..\windows", r"\windows", r"D:\src", r"\\server\share", r"C:\src\..\x", "~", r"C:..\x"]
)
def test_a_directory_outside_the_roots_is_not(cwd: str) -> None:
    with pytest.raises(PermissionDenied):
        admission(r"C:\src").admit(SessionOptions(cwd=cwd))


@every_row("cwd", ["D:app", "/c/src"])
def test_per_process_directory_is_refused(cwd: str) -> None:
    with pytest.raises(InvalidArgument):
        admission(r"C:\src").admit(SessionOptions(cwd=cwd))


def decide(tool: str, allow: list[str], deny: list[str], **given: Any) -> Decision:
    call = ToolCall(tool, given, r"C:\src", resolve, WINDOWS)
    return judge(call, [parse_rule(rule) for rule in allow], [parse_rule(rule) for rule in deny]).decision


@every_row(
    ("path", "decision"),
    [
        (r"C:\src\app\a.py", ALLOW),
        (r"c:\SRC\App\a.py", ALLOW),
        ("C:/src/app/a.py", ALLOW),
        ("app/a.py", ALLOW),
        (r"app\deep\a.py", ALLOW),
        (r"C:app\a.py", ALLOW),
        (r"\src\app\a.py", ALLOW),
        (r"app\..\a.py", ASK),
        (r"C:\src\application\a.py", ASK),
        (r"D:\src\app\a.py", ASK),
        (r"app\secret\key", DENY),
        ("APP/Secret/key", DENY),
        (r"app\x\..\secret\key", DENY),
        (r"app\secret.\key", DENY),
        (r"app\secret \key", DENY),
        (r"\\?\C:\src\app\secret\key", DENY),
        (r"C:\Windows\system.ini", DENY),
        (r"\windows\system.ini", DENY),
        (r"app\.env::$DATA", DENY),
        (r"\\server\share\x", DENY),
        (r"D:app\a.py", DENY),
        ("/c/src/app/a.py", DENY),
    ],
)
def test_files(path: str, decision: Decision) -> None:
    deny = ["Edit(app/secret/**)", r"Edit(C:\Windows\**)", "Edit(//server/share/**)", "Edit(**/.env)"]
    assert decide("Edit", ["Edit(app/**)"], deny, file_path=path) is decision


@every_row("path", ["D:app\\a.py", "/c/src/app/a.py"])
def test_per_process_path_asks(path: str) -> None:
    assert decide("Edit", ["Edit(**)"], [], file_path=path) is ASK


@every_row(
    "pattern",
    ["C:/src/app/**", r"C:\src\app\**", r"c:\SRC\app", "/src/app/**", r"app\*.py", "C:/src/*/a.py", "**/a.py"],
)
def test_patterns_are_written_with_either_slash(pattern: str) -> None:
    assert decide("Read", [f"Read({pattern})"], [], file_path=r"C:\src\app\a.py") is ALLOW
    assert decide("Read", [f"Read({pattern})"], [], file_path=r"C:\src\other\b.py") is ASK


def test_the_home_directory_is_expanded() -> None:
    assert decide("Read", ["Read(~/docs/**)"], [], file_path=r"C:\Users\me\docs\a") is ALLOW


@every_row("pattern", [r"C:\x\*", r"\x\*", r"..\*", "D:*", "//server/share/*", "~/x"])
def test_searching_elsewhere_than_it_says_is_not_allowed(pattern: str) -> None:
    assert decide("Glob", ["Read(app/**)"], [], path="app", pattern=pattern) is ASK
    assert decide("Glob", ["Read(app/**)"], [], path="app", pattern=r"deep\*.py") is ALLOW


def test_pattern_cannot_match_parent_directories() -> None:
    with pytest.raises(ValueError, match=r"\.\."):
        parse_rule(r"Edit(app\..\x)")


def test_a_program_is_known_with_its_extension() -> None:
    assert decide("Bash", ["Bash"], ["Bash(rm *)"], command="rm.exe x") is DENY
    assert decide("Bash", ["Bash"], ["Bash(rm *)"], command="/usr/bin/RM.EXE x") is DENY


@every_row(
    ("path", "cwd", "description"),
    [
        (r"C:\src\app\a.py", r"C:\src", r"app\a.py"),
        ("c:/SRC/App/a.py", "C:\\src\\", r"App\a.py"),
        (r"\\server\share\app\a.py", r"\\server\share", r"app\a.py"),
        (r"C:\source\a.py", r"C:\src", r"C:\source\a.py"),
        (r"C:\src\..\a.py", r"C:\src", r"C:\src\..\a.py"),
        (r"D:\src\a.py", r"C:\src", r"D:\src\a.py"),
        (r"C:\src", r"C:\src", r"C:\src"),
        ("a.py", r"C:\src", "a.py"),
    ],
)
def test_files_are_described_from_the_session_s_directory(path: str, cwd: str, description: str) -> None:
    assert describe("Read", {"file_path": path}, cwd, WINDOWS) == f"Read {description}"
