"""Where commands are denied, only what is known to be harmless is allowed with nobody asked."""

import pytest

from claude_code_mcp.policy.harmless_commands import GIT, PROGRAMS, Program, git_variables
from claude_code_mcp.policy.rules import Decision, ToolCall, Verdict, judge, parse_rule
from claude_code_mcp.policy.shell import option_list

ALLOW, DENY, ASK = Decision.ALLOW, Decision.DENY, Decision.ASK


def decide(command: object, allow: list[str], deny: list[str], tool: str = "Bash") -> Verdict:
    call = ToolCall(tool, {"command": command}, "/code", lambda path: path)
    return judge(call, [parse_rule(rule) for rule in allow], [parse_rule(rule) for rule in deny])


@pytest.mark.parametrize(
    ("command", "decision"),
    [
        ("npm test", ALLOW),
        ("npm test 2>&1 | tail -20", ALLOW),
        ("npm run lint && npm test", ALLOW),
        ("npm run lint && npm test && ls", ALLOW),
        ("npm test -- --watch", ASK),
        ("npm run lint --fix", ASK),
        ("cd sub && npm test", ASK),
        ("echo x | npm test", ASK),
        ("npm test; make", ASK),
        ("npm test *", ASK),
        ("npm test; rm x", DENY),
        ("sed -n 1p f", ALLOW),
        ("sed 1e f", ASK),
    ],
)
def test_a_command_that_a_rule_spells_out_is_allowed_at_the_beginning_of_a_line(
    command: str, decision: Decision
) -> None:
    allow = ["Bash(npm test *)", "Bash(npm run lint)", "Bash(tail *)", "Bash(ls)", "Bash(sed *)"]
    assert decide(command, allow, ["Bash(rm *)"]).decision is decision


def test_without_a_denied_command_the_words_alone_decide() -> None:
    for command in ("npm test -- --watch", "make", "sed -i s/a/b/ f", "cd sub && git status"):
        assert decide(command, ["Bash"], []).decision is ALLOW
        assert decide(command, ["Bash"], ["Edit(/etc/**)", "WebSearch"]).decision is ALLOW
    assert decide("npm test -- --watch", ["Bash(npm test *)"], []).decision is ALLOW


@pytest.mark.parametrize(
    ("command", "decision"),
    [
        ("cat README.md", ALLOW),
        ("cat secret.txt", DENY),
        ("cat s*", ASK),
        ("cat src/*", ASK),
        ("ls s*", ALLOW),
        ("ls | xargs cat", ASK),
        ("ls | xargs wc -l", ALLOW),
        ("timeout 5 cat secret.txt", DENY),
        ("timeout 5 cat README.md", ALLOW),
    ],
)
def test_what_could_become_a_denied_command_by_names_of_files_is_asked(command: str, decision: Decision) -> None:
    assert decide(command, ["Bash"], ["Bash(cat secret*)"]).decision is decision


@pytest.mark.parametrize("name", ["ls", "/bin/ls", "/usr/bin/ls"])
def test_a_program_of_the_system_is_known_by_its_name_and_its_path(name: str) -> None:
    assert decide(f"{name} -l", ["Bash"], ["Bash(rm *)"]).decision is ALLOW


@pytest.mark.parametrize("name", ["./ls", "bin/ls", "/tmp/ls", "/usr/local/bin/ls", "/bin/../tmp/ls", "LS", "ls.sh"])
def test_a_program_elsewhere_may_be_anything(name: str) -> None:
    assert decide(f"{name} -l", ["Bash"], ["Bash(rm *)"]).decision is ASK


@pytest.mark.parametrize(
    ("command", "doubt"),
    [
        ("make", "it is not known that 'make' runs no other program and writes no file"),
        ("ls; sed -i p f", "the words of 'sed' are not all known to be harmless"),
        ("ls $(pwd)", "the command line cannot be read with certainty"),
        (
            "cd x; git log",
            "git runs what a repository is configured with, and the line goes to another directory before",
        ),
        ("timeout 1 timeout 1 ls", "the words of 'timeout' are not all known to be harmless"),
        ("a" * 100, f"it is not known that '{'a' * 60}…' runs no other program and writes no file"),
        ("ls", ""),
    ],
)
def test_a_question_says_why_it_is_asked(command: str, doubt: str) -> None:
    assert decide(command, ["Bash"], ["Bash(rm *)"]).doubt == doubt
    assert decide(command, ["Bash"], []).doubt == ""


def test_a_shell_whose_language_is_not_read_is_asked_about() -> None:
    assert decide("ls", ["PowerShell", "Monitor"], ["Bash(rm *)"], "PowerShell").decision is ASK
    assert decide("ls", ["PowerShell"], [], "PowerShell").decision is ALLOW
    assert decide("ls", ["Monitor"], ["Bash(rm *)"], "Monitor").decision is ALLOW
    assert decide("make", ["Monitor"], ["Bash(rm *)"], "Monitor").decision is ASK


def test_a_command_that_is_no_text_is_not_understood() -> None:
    assert decide(["ls"], ["Bash"], ["Bash(rm *)"]).decision is ASK
    assert decide("", ["Bash"], ["Bash(rm *)"]).decision is ALLOW


def test_many_wrappers_and_words_upset_nothing() -> None:
    for command in (
        "timeout 1 " * 6000,
        "ls " + "-a " * 20_000,
        "xargs " * 10_000,
        "cd x;" * 10_000,
        "sed -n " + "-e p " * 9000,
    ):
        assert decide(command, ["Bash"], ["Bash(rm *)"]).decision in (ALLOW, ASK)


def test_no_option_is_in_two_kinds_of_a_list() -> None:
    """An option has a value or it has none: otherwise the words behind it would be read in another way."""
    lists = {name: entry.options for name, entry in PROGRAMS.items() if isinstance(entry, Program)}
    for text in (*lists.values(), *(entry.options for entry in GIT.values())):
        known = option_list(text)
        kinds = (known.short, known.valued, known.attached, known.long, known.long_valued)
        assert sum(map(len, kinds)) == len(frozenset().union(*kinds)), text


def test_git_gets_its_settings_beside_those_of_the_environment() -> None:
    alone = git_variables({})
    assert alone["GIT_CONFIG_COUNT"] == "2"
    assert (alone["GIT_CONFIG_KEY_0"], alone["GIT_CONFIG_VALUE_0"]) == ("safe.bareRepository", "explicit")
    beside = git_variables({"GIT_CONFIG_COUNT": "3"})
    assert beside["GIT_CONFIG_COUNT"] == "5"
    assert {name for name in beside if "KEY" in name} == {"GIT_CONFIG_KEY_3", "GIT_CONFIG_KEY_4"}
    assert git_variables({"GIT_CONFIG_COUNT": "x"}) == alone
