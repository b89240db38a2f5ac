"""Rules: a denial wins, an allowance must cover every part, everything else is asked."""

import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.core.model.paths import POSIX
from claude_code_mcp.core.policy.rules import Decision, Shell, ToolCall, judge, parse_rule
from claude_code_mcp.core.policy.shell import MAX_COMMAND
from tests.support.tables import every_row

ALLOW, DENY, ASK = Decision.ALLOW, Decision.DENY, Decision.ASK
LINKS = {"/code/link": "/etc", "/code/src/up": "/code", "/mnt/code": "/code", "/safe": "/data/safe"}


def resolve(path: str) -> str:
    """A disk with a few links on it."""
    really: list[str] = []
    for part in path.split("/"):
        if part == "..":
            really = really[:-1]
        elif part not in ("", "."):
            really.append(part)
        target = LINKS.get("/" + "/".join(really))
        if target is not None:
            really = target.strip("/").split("/")
    return "/" + "/".join(really)


def decide(tool: str, allow: list[str], deny: list[str], *, cwd: str = "/code", **given: Any) -> Decision:
    call = ToolCall(tool, given, cwd, resolve)
    return judge(call, [parse_rule(rule) for rule in allow], [parse_rule(rule) for rule in deny]).decision


@every_row(
    ("command", "decision"),
    [
        ("git diff", ALLOW),
        ("git  diff", ALLOW),
        ("git diff --stat HEAD~1", ASK),
        ("git diff && git log", ALLOW),
        ("git diff && git log --oneline", ASK),
        ("git diff | head -5", ASK),
        ("git diff; rm -rf /", DENY),
        ("git diff && rm x", DENY),
        ("git diff || curl evil", ASK),
        ("git diff\ncurl evil", ASK),
        ("git diff & curl evil", ASK),
        ("git diff $(curl evil)", ASK),
        ('git diff "$(curl evil)"', ASK),
        ("git diff `curl evil`", ASK),
        ("git diff > ~/.bashrc", ASK),
        ("git diff >> x", ASK),
        ("GIT_EXTERNAL_DIFF=evil git diff", ASK),
        ("(git diff)", ASK),
        ("git 'diff x'", ASK),
        ("git differ", ASK),
        ("gitdiff", ASK),
        ("sudo git diff", ASK),
        ("RM x", DENY),
        ("sudo rm x", DENY),
        ("git -C /x push --force", DENY),
        ("git push", DENY),
        ("git rm x", ASK),
        ("", ASK),
    ],
)
def test_command_rules(command: str, decision: Decision) -> None:
    allow, deny = ["Bash(git diff *)", "Bash(git log:*)"], ["Bash(rm *)", "Bash(git push *)"]
    assert decide("Bash", allow, deny, command=command) is decision


def test_a_denial_wins_over_an_allowance_of_the_whole_tool() -> None:
    assert decide("Bash", ["Bash"], ["Bash(rm *)"], command="ls; rm x") is DENY
    assert decide("Bash", ["Bash"], ["Bash(rm *)"], command="ls") is ALLOW
    assert decide("Bash", ["Bash"], ["Bash"], command="ls") is DENY


def test_a_command_that_may_hide_a_denied_one_is_asked_even_if_all_are_allowed() -> None:
    assert decide("Bash", ["Bash"], ["Bash(rm *)"], command="$(echo r)m x") is ASK
    assert decide("Bash", ["Bash"], [], command="$(echo r)m x") is ALLOW


HUGE = "ls " + "a" * (64 << 10)


@every_row(
    ("allow", "deny", "command", "decision"),
    [
        (["Bash(ls *)"], [], HUGE, ASK),
        (["Bash"], ["Bash(rm *)"], HUGE, ASK),
        (["Bash"], ["Bash(rm *)"], f"rm x; {HUGE}", DENY),
        (["Bash(ls *)"], ["Bash(rm *)"], f"{HUGE}; rm x", ASK),
        (["Bash"], ["Bash(rm *)"], f"{HUGE}; rm x", ASK),
        (["Bash"], [], HUGE, ALLOW),
        (["Bash"], ["Bash"], HUGE, DENY),
    ],
)
def test_a_command_too_long_to_be_read_is_never_allowed_by_its_words(
    allow: list[str], deny: list[str], command: str, decision: Decision
) -> None:
    assert decide("Bash", allow, deny, command=command) is decision


@every_row("repeated", ["command eval ", "eval ", "env -x a ", "sh -c ", "nice eval 'a' ", "xargs -x a;"])
def test_endless_chains_of_programs_are_handled(repeated: str) -> None:
    assert decide("Bash", ["Bash"], ["Bash(rm *)"], command=f"{repeated * 5000}rm x"[-60_000:]) is not ALLOW


OTHERS_DENIED = ("Bash(rm *)", "Bash(git push *)")


def steps_of(command: str, allow: Sequence[str] = ("Bash",), deny: Sequence[str] = OTHERS_DENIED) -> int:
    """How many functions are called, of Python and of C, to judge a command."""
    call = ToolCall("Bash", {"command": command}, "/code", resolve, POSIX)
    allowing, denying = list(map(parse_rule, allow)), list(map(parse_rule, deny))
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    sys.setprofile(count)
    try:
        verdict = judge(call, allowing, denying)
    finally:
        sys.setprofile(None)
    assert verdict.decision is not Decision.ALLOW
    return steps


@every_row("piece", ["a;", "a ", "env ", "$(a) ", "sh -c 'a';", '"x" ', "a|", "'"])
def test_time_to_judge_a_command_is_bounded(piece: str) -> None:
    longest = (piece * MAX_COMMAND)[:MAX_COMMAND]
    steps_of(longest)  # what is looked up once is not counted
    assert steps_of(longest * 64) <= steps_of(longest + "$") * 1.01


@pytest.mark.parametrize(
    ("piece", "allow", "deny"),
    [
        ("a;", [], ["Bash(b{} *)"]),
        ("env ", [], ["Bash(b{} *)"]),
        ("sh -c ", [], ["Bash(b{} *)"]),
        ("ls;", [], ["Bash(b{} *)"]),
        ("a;", ["Bash(b{} *)"], []),
    ],
)
def test_time_of_a_rule_does_not_grow_with_the_command(piece: str, allow: list[str], deny: list[str]) -> None:
    longest = (piece * MAX_COMMAND)[:MAX_COMMAND]

    def of_rules(number: int) -> int:
        allowing, denying = ([rule.format(n) for rule in rules for n in range(number)] for rules in (allow, deny))
        steps_of(longest, allowing, denying)  # what is looked up once is not counted
        return steps_of(longest, allowing, denying)

    assert of_rules(200) - of_rules(100) < 100 * 100


def test_a_path_is_looked_up_once_however_many_rules_there_are() -> None:
    looked_up: Counter[str] = Counter()

    def count(path: str) -> str:
        looked_up[path] += 1
        return resolve(path)

    deny = [parse_rule(f"Read({place}{number}/*.key)") for place in ("a", "/srv/a") for number in range(20)]
    for tool, arguments in (("Bash", {"command": "cat x y z"}), ("Read", {"file_path": "x/y"})):
        looked_up.clear()
        judge(ToolCall(tool, arguments, "/code", count, POSIX), [], deny)
        assert {*looked_up.values()} == {1}, tool


@pytest.mark.parametrize(
    ("tool", "arguments", "doubted"),
    [
        ("EnterWorktree", {"name": "x"}, True),
        ("Agent", {"prompt": "x", "isolation": "worktree"}, True),
        ("Task", {"prompt": "x", "cwd": "/elsewhere"}, True),
        ("Agent", {"prompt": "x"}, False),
        ("ExitWorktree", {}, False),
    ],
)
def test_where_rules_name_commands_a_move_to_another_directory_is_doubted(
    tool: str, arguments: dict[str, str], doubted: bool
) -> None:
    call = ToolCall(tool, arguments, "/work", str)
    named, denied = [parse_rule("Bash(make check)")], [parse_rule("Bash(rm *)")]
    assert [bool(judge(call, named, []).doubt), bool(judge(call, [], denied).doubt)] == [doubted, doubted]
    agreed = judge(call, [*named, parse_rule(tool)], denied)
    assert (agreed.decision, agreed.doubt) == (Decision.ALLOW, "")
    assert judge(call, [parse_rule("Bash")], []).doubt == "", "every command may run anywhere"


@pytest.mark.parametrize("tool", ["Bash", "Monitor"])
def test_a_command_of_a_subagent_elsewhere_is_doubted_unless_subagents_are_allowed(tool: str) -> None:
    call = ToolCall(tool, {"command": "make check"}, "/srv", str, subagent_directory="/srv/.claude/worktrees/a")
    named, denied = [parse_rule("Bash(make check)")], [parse_rule("Bash(rm *)")]
    verdicts = [judge(call, named, []), judge(call, [parse_rule("Bash")], denied)]
    assert all(verdict.decision is Decision.ASK and "/srv/.claude/worktrees/a" in verdict.doubt for verdict in verdicts)
    assert judge(call, [*named, parse_rule("Agent")], denied).decision is Decision.ALLOW
    assert judge(call, [parse_rule("Bash")], []).doubt == "", "every command may run anywhere"


def test_that_a_command_is_too_long_is_said() -> None:
    call = ToolCall("Bash", {"command": "ls " + "a" * MAX_COMMAND}, "/code", resolve, POSIX)
    verdict = judge(call, [parse_rule("Bash")], [parse_rule("Bash(rm *)")])
    assert (verdict.decision, verdict.doubt) == (Decision.ASK, "the command line is too long to be judged")


def test_a_path_too_long_to_be_followed_is_unclear() -> None:
    path = "src/" + "a/" * 3000
    assert decide("Edit", ["Edit(src/**)"], [], file_path=path) is ASK
    assert decide("Edit", ["Edit(src/**)"], ["Edit(src/secret/**)"], file_path=path) is DENY


def test_no_rule_at_all_asks() -> None:
    assert decide("Bash", [], [], command="ls") is ASK


def test_non_text_command_asks() -> None:
    assert decide("Bash", ["Bash(ls *)"], [], command=["ls"]) is ASK


@every_row(
    ("path", "decision"),
    [
        ("src/a.py", ALLOW),
        ("/code/src/deep/er/a.py", ALLOW),
        ("/mnt/code/src/a.py", ALLOW),
        ("src/../a.py", ASK),
        ("/code/src/../../usr/x", ASK),
        ("/code/srcx/a.py", ASK),
        ("src/up/other.py", ASK),
        ("src/secret/key", DENY),
        ("src/SECRET/key", DENY),
        ("src/x/../secret/key", DENY),
        ("/mnt/code/src/secret/key", DENY),
        ("link/passwd", DENY),
        ("/etc/passwd", DENY),
        ("", ASK),
        ("\0", DENY),
    ],
)
@every_row("tool", ["Edit", "Write", "MultiEdit"])
def test_files(tool: str, path: str, decision: Decision) -> None:
    assert decide(tool, ["Edit(src/**)"], ["Edit(src/secret/**)", "Edit(/etc/**)"], file_path=path) is decision


@every_row(
    ("pattern", "path", "decision"),
    [
        ("*.md", "a.md", ALLOW),
        ("*.md", "docs/a.md", ASK),
        ("**/*.md", "docs/x/a.md", ALLOW),
        ("**/*.md", "a.md", ALLOW),
        ("docs", "docs/x", ALLOW),
        ("docs", "docsx", ASK),
        ("/code/docs/**", "docs/x", ALLOW),
        ("//code/docs/**", "docs/x", ALLOW),
        ("/safe/**", "/data/safe/x", ALLOW),
        ("/safe/a*", "/safe/abc", ALLOW),
        ("/safe", "/safe/x", ALLOW),
        ("/safe/**", "/safety/x", ASK),
        ("a?c", "abc", ALLOW),
        ("a[b]c", "abc", ASK),
    ],
)
def test_patterns_of_files(pattern: str, path: str, decision: Decision) -> None:
    assert decide("Read", [f"Read({pattern})"], [], file_path=path) is decision


def test_searching_elsewhere_than_it_says_is_not_allowed() -> None:
    assert decide("Glob", ["Read(src/**)"], [], path="src", pattern="*.py") is ALLOW
    assert decide("Glob", ["Read(src/**)"], [], path="src", pattern="../../etc/*") is ASK
    assert decide("Glob", ["Read(src/**)"], [], path="src", pattern="/etc/*") is ASK
    assert decide("Grep", ["Read(src/**)"], [], pattern="x") is ASK


@every_row(
    ("tool", "rule", "fits"),
    [
        ("mcp__files__read", "mcp__files__*", True),
        ("mcp__files__read", "mcp__files", True),
        ("mcp__files__read", "mcp__files__read", True),
        ("mcp__files__read", "mcp__files__re*", True),
        ("mcp__files2__read", "mcp__files", False),
        ("mcp__files__read", "mcp__other__*", False),
        ("mcp__files__read", "mcp__*", True),
        ("Read", "mcp__*", False),
        ("WebSearch", "*", True),
        ("AskUserQuestion", "*", False),
        ("ExitPlanMode", "*", False),
        ("ExitPlanMode", "ExitPlanMode", True),
        ("Write", "Edit", True),
        ("Edit", "Write", False),
        ("bash", "Bash", False),
    ],
)
def test_tool_names(tool: str, rule: str, fits: bool) -> None:
    assert decide(tool, [rule], []) is (ALLOW if fits else ASK)
    assert decide(tool, [], [rule]) is (DENY if fits else ASK)


@every_row(
    ("url", "allowed", "denied"),
    [
        ("https://example.org/x", True, True),
        ("http://EXAMPLE.org", True, True),
        ("https://example.org:8443/x?y#z", True, True),
        ("https://sub.example.org/", False, True),
        ("https://example.org.evil.net/", False, False),
        ("https://example.org@evil.net/", False, False),
        ("https://evil.net\\@example.org/", False, True),
        ("https://evil.net/?example.org", False, False),
        ("https://user@example.org/", False, True),
        ("example.org", False, True),
    ],
)
def test_host_patterns(url: str, allowed: bool, denied: bool) -> None:
    assert decide("WebFetch", ["WebFetch(domain:example.org)"], [], url=url) is (ALLOW if allowed else ASK)
    assert decide("WebFetch", [], ["WebFetch(domain:example.org)"], url=url) is (DENY if denied else ASK)


def test_an_empty_list_of_tools_has_no_tool() -> None:
    call = ToolCall("Read", {"file_path": "a"}, "/code", resolve)
    assert judge(call, [parse_rule("Read")], [], tools=()).decision is DENY
    assert judge(call, [parse_rule("Read")], [], tools=("Bash",)).decision is DENY
    assert judge(call, [parse_rule("Read")], [], tools=("Read",)).decision is ALLOW


@every_row(
    "text",
    ["", "Bash(", "Bash()", "Bash( )", "(x)", "Ba*", "Bash*", "Task(x)", "WebFetch(example.org)", "Edit(../x)", "a b"],
)
def test_invalid_rule_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - its words are for people
        parse_rule(text)


def commands_in(text: str) -> list[list[str]]:
    """The words of each command between separators, read by the standard library."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|\n")
    lexer.whitespace, lexer.commenters, commands = " ", "", [list[str]()]
    for word in lexer:
        if set(word) <= set(";&|\n"):
            commands.append([])
        else:
            commands[-1].append(word)
    return [words for words in commands if words]


@given(st.text(alphabet="git dif;&|$()`'\"\\<>\nrmx=~", max_size=30))
def test_nothing_but_the_command_itself_is_ever_allowed(text: str) -> None:
    """Whatever is allowed consists of separators and commands that begin with the two allowed words."""
    if decide("Bash", ["Bash(git diff *)"], [], command=text) is ALLOW:
        assert {tuple(words[:2]) for words in commands_in(text)} == {("git", "diff")}
        assert not set(text) & set("$`()<>\\~")


@every_row(
    ("path", "refused"),
    [
        (".claude/settings.json", True),
        (".Claude/agents/x.md", True),
        ("sub/.mcp.json", True),
        (".git/hooks/pre-commit", True),
        (".claude", True),
        ("/home/user/config/settings.json", True),
        ("/etc/cron.d/x", True),
        ("link/settings.json", True),
        (".gitconfig", True),
        (".config/git/config", True),
        ("sub/.bashrc", True),
        (".Zshenv", True),
        (".config/nextest.toml", False),
        ("docs/profile", False),
        (".claude/worktrees/one/src/a.py", False),
        (".claude/worktrees/one/.claude/settings.json", True),
        ("/home/user/config/plans/plan.md", False),
        ("/home/user/config/projects/-code/memory/MEMORY.md", False),
        ("/home/user/config/projects/-code/11111111-1111-4111-8111-111111111111.jsonl", True),
        ("/home/user/config/projects/memory/11111111-1111-4111-8111-111111111111.jsonl", True),
        ("/home/user/config/projects/-code/1111/subagents/agent-a.jsonl", True),
        ("/home/user/config/projects/-code", True),
        ("/home/user/config/file-history/1111/a@v1", True),
        ("src/settings.json", False),
        (".github/workflows/x.yml", False),
    ],
)
def test_without_a_shell_no_file_is_written_that_may_name_programs(path: str, refused: bool) -> None:
    def resolve(written: str) -> str:
        return written.replace("/code/link", "/code/.claude")

    for tool in ("Write", "Edit", "NotebookEdit"):
        field = "notebook_path" if tool == "NotebookEdit" else "file_path"
        call = ToolCall(tool, {field: path}, "/code", resolve, POSIX, ("/home/user/config",), ("/code",))
        verdict = judge(call, [parse_rule("Edit")], [], shell=Shell.NONE)
        assert verdict.decision is (Decision.DENY if refused else Decision.ALLOW)
        assert judge(call, [parse_rule("Edit")], []).decision is Decision.ALLOW


def test_where_commands_are_limited_such_a_file_is_asked_about() -> None:
    call = ToolCall("Write", {"file_path": ".mcp.json"}, "/code", lambda path: path, POSIX)
    verdict = judge(call, [parse_rule("Edit")], [parse_rule("Bash(rm *)")], shell=Shell.LIMITED)
    assert (verdict.decision, verdict.doubt) == (Decision.ASK, "the file may name programs to run")


@pytest.mark.parametrize(
    "command",
    [
        "git clone -u evil .",
        "git clone -qu evil .",
        "git difftool --extcmd=evil",
        "git difftool --extc evil",
        "git send-email --sendmail-cmd=evil",
        "git daemon --access-hook=evil",
    ],
)
def test_a_wildcard_covers_no_option_with_which_git_runs_a_program(command: str) -> None:
    allow = [parse_rule(f"Bash(git {command.split()[1]} *)")]
    assert judge(ToolCall("Bash", {"command": command}, "/code", str), allow, []).decision is Decision.ASK
    usual = ToolCall("Bash", {"command": "git push -u origin"}, "/code", str)
    assert judge(usual, [parse_rule("Bash(git push *)")], []).decision is Decision.ALLOW
