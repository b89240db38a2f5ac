"""Rows of the table of parity that tests check, those marked in `make soak` alone; see `parity.py`."""

import json
from pathlib import Path

import pytest

from claude_code_mcp.testing.script import tool
from tests.hub.test_claude_sign_in import Cli, cli  # noqa: F401 - a fixture
from tests.hub.test_foreign_servers import node

from .conftest import Both, Seen, full
from .parity import check_descriptions


@pytest.mark.soak  # what the hub does: test_mcp_bridge.py
async def test_tools_results_resources_prompts_and_questions(both: Both) -> None:
    """One session each way for all that the usual run shows."""
    choices = ["Ada", "Lovelace", ["Red, dark", "Blue"], "Large", "Yes", "3"]
    seen = await both(
        {"x": full()},
        tool("mcp__x__echo", word="hi"),
        tool("mcp__x__big", size=150_000),
        tool("mcp__x__rows", size=150_000),
        tool("mcp__x__roots"),
        tool("ListMcpResourcesTool"),
        tool("ReadMcpResourceTool", server="x", uri="full://note"),
        # The first of what is asked: once anything was answered, the server has no reason to refuse.
        tool("mcp__x__address_first"),
        tool("mcp__x__address"),
        tool("mcp__x__form"),
        messages=("/mcp__x__greet Ada",),
        answers=lambda asked: choices if len(asked.choices) == len(choices) else ["Yes"],
    )
    check_descriptions(
        seen, "a tool is called", lambda one: "its result" if '"hi"' in one.results[0] else one.results[0]
    )
    check_descriptions(seen, "a result of 150,000 characters", lambda one: _saved(one.results[1], 150_000))
    check_descriptions(seen, "structured content of 150,000 characters", lambda one: _saved(one.results[2], 150_000))
    check_descriptions(seen, "a server asks for roots", lambda one: _directory(one, one.results[3]))
    check_descriptions(
        seen, "resources are listed", lambda one: "listed" if "full://note" in one.results[4] else "none"
    )
    check_descriptions(
        seen, "a resource is read", lambda one: "its text" if "This is full://note" in one.results[5] else "none"
    )
    filled = {"first": "Ada", "second": "Lovelace", "colors": ["r", "b"], "size": "l", "sure": True, "count": 3}
    check_descriptions(
        seen, "a server asks with a form", lambda one: _answer(one, {"action": "accept", "content": filled}, 8)
    )
    check_descriptions(seen, "a server asks to open a URL", lambda one: _answer(one, {"action": "accept"}, 7))
    check_descriptions(seen, "a server refuses until a URL was opened (-32042)", _called_again)
    check_descriptions(
        seen, "`/mcp__server__prompt`", lambda one: "the prompt" if one.said == "Good day, Ada!" else one.said
    )


def _called_again(one: Seen) -> str:
    addresses = [question for question in one.asked if "https://" in question]
    return "asked, and called again" if one.results[6] == "signed in" and len(addresses) == 2 else "refused"


def _saved(result: str, size: int) -> str:
    path = result.partition("saved to ")[2].partition(".txt")[0]
    whole = bool(path) and len(Path(f"{path}.txt").read_text()) >= size
    return "saved to a file, which the result names" if whole else result[:50]


def _directory(one: Seen, result: str) -> str:
    roots = json.loads(result).get("roots", [])
    return "the session's directory" if [root["uri"] for root in roots] == [Path(one.cwd).as_uri()] else result


@pytest.mark.soak
async def test_names_that_are_the_same_to_a_model(both: Both) -> None:
    seen = await both({"a b": full(), "a.b": full()})
    check_descriptions(
        seen,
        "two servers whose names normalize to the same",
        lambda one: {1: "one of them", 2: "both"}[sum(name.endswith("__echo") for name in one.tools)],
    )


def _answer(one: Seen, expected: object, place: int) -> str:
    given = json.loads(one.results[place])
    if given == {"action": "cancel"} and not one.asked:
        return "cancelled without asking anyone"
    return "a person is asked" if given == expected else str(given)


@pytest.mark.soak
async def test_a_server_that_ends_at_the_probe(both: Both) -> None:
    seen = await both({"x": full("ends")}, tool("mcp__x__echo", word="hi"))
    check_descriptions(seen, "a server that exits at the first unknown message", _works)


def _works(one: Seen) -> str:
    return "works" if "mcp__x__echo" in one.tools and one.results == ['{"word": "hi"}'] else "missing"


@pytest.mark.soak  # that a hub starts it there: tests/hub/test_server_pool.py
async def test_a_server_of_the_sessions_directory(both: Both, packages: Path) -> None:
    servers = {"files": node(packages, "server-filesystem", ".")}
    seen = await both(servers, tool("mcp__files__list_allowed_directories"))
    check_descriptions(
        seen,
        "`server-filesystem .` serves",
        lambda one: "the session's directory" if one.cwd in one.results[0] else one.results[0],
    )


@pytest.mark.soak
async def test_servers_that_claude_code_is_signed_in_to(both: Both, cli: Cli) -> None:  # noqa: F811
    seen = await both({"x": {"type": "http", "url": cli.url}}, tool("mcp__x__echo"))
    check_descriptions(
        seen,
        "a server that `claude mcp login` signed in to",
        lambda one: "works" if one.results[0] == "echo {}" else one.results[0],
    )
