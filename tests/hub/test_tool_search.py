"""Tools found by words: what is meant comes first."""

from typing import Any

import pytest

from claude_code_mcp.hub.tool_search import ToolIndex, words_of

TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "github create_issue": ("Create a new issue in a repository.", {"repo": "The repository", "title": "", "body": ""}),
    "github list_issues": ("List issues in a repository, with filters.", {"repo": "", "state": "open or closed"}),
    "github create_pull_request": ("Open a pull request.", {"base": "The branch to merge into", "head": ""}),
    "github get_file_contents": ("Get the contents of a file or directory.", {"path": "", "ref": ""}),
    "files read_text_file": ("Read a file as text.", {"path": "Where the file is", "head": "", "tail": ""}),
    "files writeFile": ("Create or overwrite a file.", {"path": "", "content": ""}),
    "time get_current_time": ("What time it is now.", {"timezone": "IANA name of the time zone"}),
    "time convert_time": ("Convert a time between time zones.", {"source": "", "target": ""}),
    "chat post_message": ("Send a message to a channel. Not for issues of any kind.", {"channel": "", "text": ""}),
    "db query": ("Run a read-only SQL statement.", {"sql": "SELECT only", "database": ""}),
}
NAMES = list(TOOLS)


def index() -> ToolIndex:
    return ToolIndex(
        (name, description, {"properties": {key: {"description": text} for key, text in parameters.items()}})
        for name, (description, parameters) in TOOLS.items()
    )


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("create an issue on GitHub", "github create_issue"),
        ("list issues", "github list_issues"),
        ("open pull request", "github create_pull_request"),
        ("read file", "files read_text_file"),
        ("write file", "files writeFile"),
        ("what time is it", "time get_current_time"),
        ("convert time zones", "time convert_time"),
        ("send a message", "chat post_message"),
        ("SQL", "db query"),
        ("queries", "db query"),
        ("timezone", "time get_current_time"),
        ("chat", "chat post_message"),
    ],
)
def test_the_tool_that_is_meant_comes_first(query: str, best: str) -> None:
    assert NAMES[index().ranked(query)[0]] == best


def test_a_word_in_the_name_counts_more_than_one_in_a_description() -> None:
    ranked = [NAMES[number] for number in index().ranked("issue")]
    assert ranked[:2] == ["github create_issue", "github list_issues"]
    assert ranked[-1] == "chat post_message"


def test_the_beginning_of_a_word_finds_it_and_the_whole_word_is_better() -> None:
    tools = ToolIndex([("a", "about the repository", {}), ("b", "about the repo", {})])
    assert list(tools.ranked("repo")) == [1, 0]


def test_parameters_are_searched_by_name_description_and_choices() -> None:
    schema = {"properties": {"color": {"description": "of the door", "enum": ["crimson", "teal"]}}}
    tools = ToolIndex([("other", None, {}), ("paint", None, schema)])
    for query in ("color", "door", "crimson"):
        assert list(tools.ranked(query)) == [1]


@pytest.mark.parametrize("query", ["", "  ", "!?", "unheard", "a" * 100_000])
def test_search_for_an_absent_word_finds_nothing(query: str) -> None:
    assert list(index().ranked(query)) == []


@pytest.mark.parametrize(
    "schema", [{}, {"properties": 3}, {"properties": {"a": True}}, {"properties": {"a": {"enum": 7}}}]
)
def test_a_schema_of_any_shape_is_read(schema: dict[str, Any]) -> None:
    assert list(ToolIndex([("name", None, schema)]).ranked("name")) == [0]


def test_server_without_tools() -> None:
    assert list(ToolIndex([]).ranked("anything")) == []


def test_names_are_split_at_capitals_underscores_and_digits_in_every_script() -> None:
    assert words_of("createIssue_v2-of Größen") == ["create", "issue", "v", "2", "of", "größen"]
