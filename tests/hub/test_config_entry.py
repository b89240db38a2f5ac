"""Entries of `mcpServers`: every type, variables, and errors that say what is wrong without telling secrets."""

import re
from typing import Any

import pytest

from claude_code_mcp.hub.config_entry import (
    IDE_TOOLS,
    HttpConfig,
    InvalidEntry,
    SdkConfig,
    ServerConfig,
    StdioConfig,
    WebSocketConfig,
    fingerprint,
    parse_entry,
)

ENVIRONMENT = {"TOKEN": "s3cret", "EMPTY": "", "HOME": "/home/me"}


def parse(name: str = "x", **entry: Any) -> ServerConfig:
    return parse_entry(name, entry, ENVIRONMENT)


def test_a_command_makes_a_stdio_server() -> None:
    config = parse(command="npx", args=["-y", "thing", 3], env={"A": 1})
    assert isinstance(config, StdioConfig)
    assert (config.command, config.args, config.env) == ("npx", ("-y", "thing", "3"), {"A": "1"})
    assert config.is_local


def test_an_address_makes_a_remote_server() -> None:
    assert isinstance(parse(url="https://example.com/mcp"), HttpConfig)
    assert isinstance(parse(url="wss://example.com"), WebSocketConfig)
    assert not parse(url="https://example.com/mcp").is_local


@pytest.mark.parametrize("type_", ["http", "sse", "ws", "sse-ide", "ws-ide"])
def test_every_remote_type_is_known(type_: str) -> None:
    assert parse(type=type_, url="http://127.0.0.1:1/x").type == type_


def test_other_programs_words_for_a_type_are_understood() -> None:
    assert parse(type="streamable-http", url="http://a/b").type == "http"
    assert parse(transport="sse", url="http://a/b").type == "sse"
    assert isinstance(parse(type="sdk", name="inner"), SdkConfig)


def test_keys_of_other_programs_do_no_harm() -> None:
    assert parse(command="x", autoApprove=["y"], description="z").type == "stdio"


def test_variables_are_filled_in_everywhere() -> None:
    config = parse(
        url="https://${HOST:-example.com}/${PATH_PART:-}",
        headers={"Authorization": "Bearer ${TOKEN}", "X": "${EMPTY:-default}", "Y": "${env:TOKEN}", "Z": "${EMPTY}"},
    )
    assert isinstance(config, HttpConfig)
    assert config.url == "https://example.com/"
    assert config.headers == {"Authorization": "Bearer s3cret", "X": "default", "Y": "s3cret", "Z": ""}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, r"command\b.*\burl"),
        ({"command": "${NOPE}"}, "NOPE"),
        ({"type": "carrier-pigeon", "url": "http://a"}, "type.*stdio, http"),
        ({"type": "http"}, "url: Field required"),
        ({"type": "http", "url": "example.com"}, "url: .*http"),
        ({"command": ["a", "b"]}, "command: Input should be a valid string"),
        ({"command": "x", "env": {"KEY": ["s3cret"]}}, r"env\.KEY: Input should be a valid string"),
    ],
)
def test_a_bad_entry_is_refused_with_what_is_wrong(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidEntry) as refusal:
        parse_entry("x", entry, ENVIRONMENT)
    assert re.search(message, str(refusal.value))
    assert "s3cret" not in str(refusal.value)


def test_an_entry_that_is_no_object_is_refused() -> None:
    with pytest.raises(InvalidEntry):
        parse_entry("x", ["command"], {})


def test_lists_let_tools_through() -> None:
    config = parse(command="x", includeTools=["a", "b"], excludeTools=["b"])
    assert [tool for tool in "abc" if config.allows(tool)] == ["a"]
    assert parse(command="x").allows("anything")


def test_ide_offers_only_tools_for_models_by_default() -> None:
    assert parse(type="ws-ide", url="ws://127.0.0.1:1").include_tools == IDE_TOOLS
    assert parse(name="ide", url="http://127.0.0.1:1").include_tools == IDE_TOOLS
    assert parse(name="ide", url="http://127.0.0.1:1", includeTools=["other"]).include_tools == ("other",)


def test_a_fingerprint_changes_with_name_and_configuration_and_hides_both() -> None:
    original = fingerprint("x", parse(command="a", env={"K": "${TOKEN}"}))
    assert original == fingerprint("x", parse(command="a", env={"K": "s3cret"}))
    assert original != fingerprint("y", parse(command="a", env={"K": "s3cret"}))
    assert original != fingerprint("x", parse(command="b", env={"K": "s3cret"}))
    assert "s3cret" not in original
