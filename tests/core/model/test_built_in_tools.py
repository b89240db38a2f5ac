"""Names of tools that a caller may have misspelled."""

from claude_code_mcp.core.model.built_in_tools import proper_name, unknown_tools
from tests.support.tables import every_row


@every_row(
    ("rule", "nearest"),
    [("Bsh", "Bash"), ("bash", "Bash"), ("Raed(src/**)", "Read"), ("WebFecth", "WebFetch"), ("Xyzzyplugh", None)],
)
def test_an_unknown_tool_comes_with_the_nearest_known_one(rule: str, nearest: str | None) -> None:
    assert unknown_tools([rule]) == {rule.partition("(")[0]: nearest}


def test_known_tools_those_of_mcp_servers_and_patterns_are_not_unknown() -> None:
    assert unknown_tools(["Bash", "Bash(git diff *)", "Agent(reviewer)", "mcp__calc__add", "mcp__calc", "*", ""]) == {}


def test_a_name_is_spelled_as_claude_code_spells_it() -> None:
    assert [proper_name(name) for name in ("read", "WEBFETCH", "other")] == ["Read", "WebFetch", "other"]
