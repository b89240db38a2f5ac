"""A rule that denies to read files: its effect on commands, and on the files of a sandbox."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.core.model.paths import POSIX
from claude_code_mcp.core.policy.rules import Decision, ToolCall, fits, judge, parse_rule, unreadable_paths

ALLOW, DENY, ASK = Decision.ALLOW, Decision.DENY, Decision.ASK
SECRET = [parse_rule("Read(**/.env)")]


def decide(command: str, allow: tuple[str, ...] = ("Bash",), *, hidden: bool = False) -> Decision:
    links = {"/code/link": "/code/.env"}
    call = ToolCall(
        "Bash",
        {"command": command},
        "/code",
        lambda path: links.get(path, POSIX.normal(path)),
        POSIX,
        hides_denied_files=hidden,
    )
    return judge(call, list(map(parse_rule, allow)), SECRET).decision


@pytest.mark.parametrize(
    ("command", "decision"),
    [
        # It reads only the files that it names
        ("cat README.md", ALLOW),
        ("head -n 20 src/app.ts", ALLOW),
        ("ls -la", ALLOW),
        ("ls .env", ALLOW),
        ("echo .env", ALLOW),
        ("cat a b | wc -l", ALLOW),
        # It names the file
        ("cat .env", DENY),
        ("cat ./sub/../.env", DENY),
        ("cat /code/.ENV", DENY),
        ("cat link", DENY),
        ("ls; head -5 sub/.env", DENY),
        ("grep KEY .env", DENY),
        ("cut -d= -f2 .env", DENY),
        # It may read the file without naming it
        ("cat .e*", ASK),
        ("cat .en?", ASK),
        ("grep -rn KEY", ASK),
        ("grep -rn KEY .", ASK),
        ("grep .env README.md", ASK),
        ("rg --hidden KEY", ASK),
        ("git show HEAD:.env", ASK),
        ("git grep KEY", ASK),
        ("git log -p", ASK),
        ("git diff 4b825dc642cb6eb9a060e54bf8d69288fbee4904 HEAD", ASK),
        ("cd sub && cat .env", DENY),
        ("cd sub && cat ../other", ASK),
        ("wc --files0-from=.env", ASK),
        ("du --files0-from=.env", ASK),
        ("du --files0-from .env", DENY),
        ("du -sh src", ALLOW),
        ("cat /proc/self/cwd/.env", ASK),
        ("cat //proc/self/cwd/app", ASK),
        ("cat /./proc/self/cwd/app", ASK),
        ("cat ../../proc/self/cwd/app", ASK),
        ("cat ~/../dev/fd/3", ASK),
        ("cat /home/me/dev/app", ALLOW),
        ("cat dev/app", ALLOW),
        ("cat $(echo .env)", ASK),
        ("python3 -c 'print(open(\".env\").read())'", ASK),
        ("cat " + "a " * 300, ASK),
    ],
)
def test_where_a_file_must_not_be_read_commands_that_may_read_it_are_denied_or_asked(
    command: str, decision: Decision
) -> None:
    assert decide(command) is decision


def test_a_command_that_a_rule_spells_out_may_run() -> None:
    allow = ("Bash(npm test)", "Bash(git diff *)")
    assert [decide(command, allow) for command in ("npm test", "git diff", "git diff HEAD")] == [ALLOW, ALLOW, ASK]


def test_in_a_sandbox_that_hides_the_file_commands_are_not_asked_about() -> None:
    assert decide("grep -rn KEY", hidden=True) is ALLOW
    assert decide("npm run build", hidden=True) is ALLOW
    assert decide("cat .env", hidden=True) is DENY, "a named file is refused all the same"


PATTERNS = st.lists(st.sampled_from(["**", "*", "a", "b", "a*", "?b", ".env", "A.b"]), min_size=1, max_size=4)
PATHS = st.lists(st.sampled_from(["a", "b", "ab", "bb", ".env", "a.b", "xenv"]), min_size=1, max_size=5)


@given(PATTERNS, PATHS, st.sampled_from(["", "/", "/code/"]), st.sampled_from(["/code/", "/"]))
def test_the_expression_for_many_paths_fits_what_a_rule_fits(
    parts: list[str], names: list[str], start: str, place: str
) -> None:
    pattern, path = (start + "/".join(parts)).casefold(), place + "/".join(names)
    expression = unreadable_paths([parse_rule(f"Read({pattern})")], "/code", lambda path: path)
    assert expression is not None
    assert bool(expression.fullmatch(path)) == fits(path, pattern, "/code", POSIX)


def test_without_such_a_rule_there_is_no_expression() -> None:
    assert unreadable_paths([parse_rule("Read"), parse_rule("Bash(rm *)")], "/code", str) is None
