"""The examples of docs/policy.md, and what its text says about rules, as they are written there."""

import re
import tomllib
from pathlib import Path

import pytest

from claude_code_mcp.core.policy.harmless_commands import PROGRAMS
from claude_code_mcp.core.policy.policy import Profile, parse_policy
from claude_code_mcp.core.policy.rules import Decision, ToolCall, judge, parse_rule

PAGE = (Path(__file__).parents[3] / "docs" / "policy.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
RULES = re.search(r"^## Rules\n(.*?)^## Secrets", PAGE, re.DOTALL | re.MULTILINE)
assert RULES is not None
TABLE = dict(re.findall(r"^\| (`[A-Za-z_*]+(?:\(.*?\))?`(?:, `\w+`)?) \| (.*?) \|$", RULES[1], re.MULTILINE))
ALLOW, DENY, ASK = Decision.ALLOW, Decision.DENY, Decision.ASK


def decide(profile: Profile, tool: str, **arguments: str) -> Decision:
    call = ToolCall(tool, arguments, "/srv/projects/shop", lambda path: path)
    return judge(call, profile.allow_rules, profile.deny_rules, profile.tools, profile.shell).decision


def with_rules(allow: str = "", deny: str = "") -> Profile:
    return Profile(
        allow=(parse_rule(allow),) if allow else (),
        deny=(parse_rule(deny),) if deny else (),
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.split("\n", 1)[0])
def test_every_example_is_a_policy(example: str) -> None:
    policy = parse_policy(example, "docs/policy.md")
    assert set(tomllib.loads(example)) <= {"default", "profiles", "principals", "groups", "credentials"}
    assert policy.profiles


@pytest.mark.parametrize(
    ("tool", "arguments", "decision"),
    [
        ("Bash", {"command": "git status"}, ALLOW),
        ("Bash", {"command": "git status --output=x"}, ASK),
        ("Bash", {"command": "npm test"}, ALLOW),
        ("Bash", {"command": "npm test 2>&1 | tail -20"}, ASK),
        ("Bash", {"command": "npm test -- --watch"}, ASK),
        ("Bash", {"command": "rm -rf x"}, DENY),
        ("Bash", {"command": "git push origin main"}, DENY),
        ("Bash", {"command": "cat .env"}, DENY),
        ("Bash", {"command": "grep -rn KEY"}, ASK),
        ("Bash", {"command": "git show HEAD:.env"}, ASK),
        ("Edit", {"file_path": "src/a.py"}, ALLOW),
        ("Edit", {"file_path": "a.py"}, ASK),
        ("Read", {"file_path": "deep/.env"}, DENY),
        ("WebFetch", {"url": "https://api.internal.example/"}, DENY),
        ("mcp__docs__search", {}, ALLOW),
        ("mcp__other__search", {}, ASK),
    ],
)
def test_the_first_example_decides_as_its_rules_say(tool: str, arguments: dict[str, str], decision: Decision) -> None:
    team = parse_policy(EXAMPLES[0], "docs/policy.md").profile("anybody")
    assert decide(team, tool, **arguments) is decision


DOCUMENTED: dict[str, list[tuple[str, dict[str, str], bool]]] = {
    "`Bash`": [("Bash", {"command": "make"}, True)],
    "`Bash(npm test)`": [("Bash", {"command": "npm test"}, True), ("Bash", {"command": "npm test x"}, False)],
    "`Bash(git log *)`": [
        ("Bash", {"command": "git log"}, True),
        ("Bash", {"command": "git log --oneline -5"}, True),
        ("Bash", {"command": "git log --output=x"}, False),
    ],
    "`Edit(src/**)`": [("Write", {"file_path": "src/a/b"}, True), ("Edit", {"file_path": "a"}, False)],
    "`Read(/srv/docs/**)`": [("Grep", {"path": "/srv/docs/x"}, True), ("Read", {"file_path": "/srv/x"}, False)],
    "`WebFetch(domain:example.org)`": [
        ("WebFetch", {"url": "https://example.org/a"}, True),
        ("WebFetch", {"url": "https://a.example.org/"}, False),
    ],
    "`mcp__docs__*`, `mcp__docs`": [("mcp__docs__search", {}, True), ("mcp__other__search", {}, False)],
}


def test_every_row_of_the_table_is_tried() -> None:
    assert set(TABLE) == set(DOCUMENTED)


@pytest.mark.parametrize("row", DOCUMENTED)
def test_a_rule_of_the_table_covers_what_is_written_there(row: str) -> None:
    for rule in re.findall(r"`(.*?)`", row):
        for tool, arguments, covered in DOCUMENTED[row]:
            assert decide(with_rules(allow=rule), tool, **arguments) is (ALLOW if covered else ASK), (rule, arguments)


@pytest.mark.parametrize("command", ["sudo rm", "sh -c 'rm x'", "/bin/rm", "find -exec rm"])
def test_alias_of_a_denied_command_is_denied(command: str) -> None:
    assert f"`{command}`" in PAGE
    assert decide(with_rules("Bash", "Bash(rm *)"), "Bash", command=command) is DENY


def test_the_programs_that_need_no_question_are_those_of_the_page() -> None:
    entry = re.search(r"\*\*Programs that only look.*?usual options", PAGE, re.DOTALL)
    assert entry is not None
    assert set(re.findall(r"`(\w+)`", entry[0])) == set(PROGRAMS)


@pytest.mark.parametrize(
    ("command", "decision"),
    [
        ("npm test 2>&1 | tail -20", ALLOW),
        ("cd elsewhere && npm test", ASK),
        ("npm test -- --watch", ASK),
    ],
)
def test_a_command_that_is_spelled_out_runs_where_commands_are_denied(command: str, decision: Decision) -> None:
    assert f"`{command}`" in PAGE
    profile = Profile(
        allow=tuple(map(parse_rule, ["Bash(npm test)", "Bash(npm test *)", "Bash(tail *)"])),
        deny=(parse_rule("Bash(rm *)"),),
    )
    assert decide(profile, "Bash", command=command) is decision
