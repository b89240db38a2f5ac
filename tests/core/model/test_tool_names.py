"""Names of tools: what a model can take, and the way back from a name to its tool."""

import re

from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.core.model.tool_names import MAX_LENGTH, ToolNames, normalize, plain_name, prefix_of

NAMES = st.text(min_size=1, max_size=90)
PAIRS = st.lists(st.tuples(NAMES, NAMES), max_size=12)


def test_a_name_says_its_server_and_its_tool() -> None:
    assert plain_name("github", "create_pull_request") == "mcp__github__create_pull_request"
    assert plain_name("my server.io", "a/b c") == "mcp__my_server_io__a_b_c"
    assert prefix_of("my server") == "mcp__my_server__"


def test_allowed_texts_are_unchanged() -> None:
    assert normalize("A-z_09") == "A-z_09"


def test_tools_with_equal_names_are_distinguished() -> None:
    names = ToolNames([("a b", "c"), ("a_b", "c"), ("x", "y")])
    assert names.name("x", "y") == "mcp__x__y"
    assert names.name("a b", "c") != names.name("a_b", "c")
    assert names[names.name("a b", "c")] == ("a b", "c")


def test_two_underscores_in_a_name_do_not_confuse_the_way_back() -> None:
    names = ToolNames([("a__b", "c"), ("a", "b__c"), ("a", "z__y")])
    assert names["mcp__a__z__y"] == ("a", "z__y")
    assert names[names.name("a__b", "c")] == ("a__b", "c")
    assert names[names.name("a", "b__c")] == ("a", "b__c")


@given(PAIRS)
def test_every_name_leads_back_to_its_tool_and_can_be_used(pairs: list[tuple[str, str]]) -> None:
    names = ToolNames(pairs)
    assert {names[names.name(*pair)] for pair in pairs} == set(pairs)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", name) and len(name) <= MAX_LENGTH for name in names)


@given(PAIRS)
def test_the_order_in_which_servers_come_up_changes_no_name(pairs: list[tuple[str, str]]) -> None:
    forward, backward = ToolNames(pairs), ToolNames(reversed(pairs))
    assert dict(forward) == dict(backward)
