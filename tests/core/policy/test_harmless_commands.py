"""Where commands are denied, only what is known to be harmless is allowed with nobody asked."""

import pytest

from claude_code_mcp.core.policy.git_commands import git_variables
from claude_code_mcp.core.policy.rules import Decision, ToolCall, Verdict, judge, parse_rule

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
        ("sed -n 1p f", ASK),
        ("git status", ALLOW),
        ("git status -v", ASK),
    ],
)
def test_a_command_that_a_rule_spells_out_is_allowed_at_the_beginning_of_a_line(
    command: str, decision: Decision
) -> None:
    allow = ["Bash(npm test *)", "Bash(npm run lint)", "Bash(tail *)", "Bash(ls)", "Bash(sed *)", "Bash(git status)"]
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
        ("timeout 5 cat secret.txt", DENY),
        ("timeout 5 cat README.md", ASK),
    ],
)
def test_wildcard_that_could_become_a_denied_command_asks(command: str, decision: Decision) -> None:
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
        ("make", "'make' may run other programs or write files"),
        ("ls; sed -i p f", "'sed' may run other programs or write files"),
        ("ls $(pwd)", "the command line cannot be parsed reliably"),
        ("grep --pager=sh x f", "some options of 'grep' are not known to be harmless"),
        ("timeout 1 ls", "'timeout' may run other programs or write files"),
        ("a" * 100, f"'{'a' * 60}…' may run other programs or write files"),
        ("ls", ""),
    ],
)
def test_a_question_says_why_it_is_asked(command: str, doubt: str) -> None:
    assert decide(command, ["Bash"], ["Bash(rm *)"]).doubt == doubt
    assert decide(command, ["Bash"], []).doubt == ""


def test_unsupported_shell_asks() -> None:
    assert decide("ls", ["PowerShell", "Monitor"], ["Bash(rm *)"], "PowerShell").decision is ASK
    assert decide("ls", ["PowerShell"], [], "PowerShell").decision is ALLOW
    assert decide("ls", ["Monitor"], ["Bash(rm *)"], "Monitor").decision is ALLOW
    assert decide("make", ["Monitor"], ["Bash(rm *)"], "Monitor").decision is ASK


def test_non_text_command_cannot_be_parsed() -> None:
    assert decide(["ls"], ["Bash"], ["Bash(rm *)"]).decision is ASK
    assert decide("", ["Bash"], ["Bash(rm *)"]).decision is ALLOW


def test_many_wrappers_and_words_are_handled() -> None:
    for command in (
        "/bin/timeout 9 " * 1000 + "sh evil.sh",
        "timeout 1 " * 1600,
        "ls " + "-a " * 5000,
        "xargs " * 2500,
        "cd x;" * 3000,
        "grep " + "-e p " * 3000,
    ):
        assert decide(command, ["Bash"], ["Bash(rm *)"]).decision in (ALLOW, ASK)


@pytest.mark.parametrize(
    ("words", "decision"),
    [
        ("-n foo src/a.py", ALLOW),
        ("-rnE 'a|b' src", ALLOW),
        ("-A3 -B 2 -m5 foo f", ALLOW),
        ("-ne foo f", ALLOW),
        ("--color=never --include='*.py' foo src", ALLOW),
        ("foo *.py", ASK),
        ("foo src/*.py", ALLOW),
        ("-Q foo f", ASK),
        ("-nQ foo f", ASK),
        ("--filter='*:sh' foo f", ASK),
        ("--save-config=x foo f", ASK),
        ("-f list f", ASK),
        ("foo -- --pager=sh", ASK),
    ],
)
def test_only_listed_grep_options_are_harmless(words: str, decision: Decision) -> None:
    assert decide(f"grep {words}", ["Bash"], ["Bash(rm *)"]).decision is decision


@pytest.mark.parametrize(
    ("command", "decision"),
    [
        ("git diff", ALLOW),
        ("git diff --stat HEAD~1 -- src", ALLOW),
        ("git log --oneline -5", ALLOW),
        ("git diff --output=x", ASK),
        ("git diff --output x", ASK),
        ("git diff --outp=x", ASK),
        ("git diff HEAD -- --output=x", ASK),
        ("git log -p --output=.bashrc", ASK),
        ("git diff --ext-diff", ASK),
        ("git diff --textconv", ASK),
        ("git log --show-signature", ASK),
        ("/usr/bin/git show --output=x", ASK),
        ("git -c core.pager=sh show", ASK),
        ("git --exec-path=. show", ASK),
        ("git --git-dir=x show", ASK),
        ("git -C sub show", ASK),
        ("git --no-pager show", ALLOW),
        ("git grep -O x", ASK),
        ("git grep -Osh x", ASK),
        ("git grep --open-files-in-pager=sh x", ASK),
        ("git archive -o x HEAD", ASK),
        ("git -C /srv/repo status --short", ALLOW),
        ("git -C /srv/repo status --output=x", ASK),
    ],
)
def test_a_wildcard_does_not_cover_options_with_which_git_writes_or_runs_more(command: str, decision: Decision) -> None:
    allow = ["Bash(git diff *)", "Bash(git log:*)", "Bash(/usr/bin/git *)", "Bash(git *)", "Bash(git -C /srv/repo *)"]
    assert decide(command, allow, []).decision is decision


def test_a_rule_may_spell_out_such_an_option() -> None:
    assert decide("git diff --output=x", ["Bash(git diff --output=x)"], []).decision is ALLOW
    assert decide("git diff --output=y", ["Bash(git diff --output=x)"], []).decision is ASK


def test_git_gets_its_settings_next_to_those_of_the_environment() -> None:
    alone = git_variables({})
    assert alone["GIT_CONFIG_COUNT"] == "2"
    assert (alone["GIT_CONFIG_KEY_0"], alone["GIT_CONFIG_VALUE_0"]) == ("safe.bareRepository", "explicit")
    beside = git_variables({"GIT_CONFIG_COUNT": "3"})
    assert beside["GIT_CONFIG_COUNT"] == "5"
    assert {name for name in beside if "KEY" in name} == {"GIT_CONFIG_KEY_3", "GIT_CONFIG_KEY_4"}
    assert git_variables({"GIT_CONFIG_COUNT": "x"}) == alone
