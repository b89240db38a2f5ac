"""Configuration as other programs write it: keys, inputs, variables from a file, comments."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.hub.config_entry import HttpConfig, StdioConfig, read_env_file
from claude_code_mcp.hub.config_files import ConfigPaths, HubConfig, read_configuration


def read(tmp_path: Path, text: str, **environment: str) -> HubConfig:
    (tmp_path / "mcp.json").write_text(text)
    return read_configuration(ConfigPaths(tmp_path / "mcp.json"), environment)


def test_vs_codes_file_is_read_with_comments_inputs_and_a_file_of_variables(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("# mine\nexport A=from file # why\nB='two words'\nC=\"x\"\n\nnothing\n")
    text = """\ufeff{
      // the servers
      "servers": {
        "one": {"type": "stdio", "command": "x", "envFile": "${workspaceFolder}/.env", "env": {"C": "own"},},
        "two": {"type": "http", "url": "https://example.com/mcp", /* the key */
                "headers": {"Authorization": "Bearer ${input:api-key}", "X": "${input:team}"}},
      },
      "inputs": [{"id": "api-key", "type": "promptString", "password": true}, {"id": "team", "default": "blue"}],
    }"""
    found = read(tmp_path, text, API_KEY="k3y")
    assert list(found.problems) == []
    one, two = found.servers["one"].config, found.servers["two"].config
    assert isinstance(one, StdioConfig)
    assert one.env == {"A": "from file", "B": "two words", "C": "own"}
    assert isinstance(two, HttpConfig)
    assert two.headers == {"Authorization": "Bearer k3y", "X": "blue"}


def test_missing_input_is_a_problem_of_its_entry_only(tmp_path: Path) -> None:
    servers = {"a": {"command": "${input:where is it}"}, "b": {"command": "x"}}
    found = read(tmp_path, json.dumps({"servers": servers}))
    assert list(found.servers) == ["b"]
    assert "WHERE_IS_IT" in str(found.problems[0])


@pytest.mark.parametrize(
    ("entry", "type_"),
    [
        ({"serverUrl": "https://a/mcp"}, "http"),
        ({"httpUrl": "https://a/mcp"}, "http"),
        ({"serverUrl": "https://a/sse", "type": "sse"}, "sse"),
        ({"url": "https://a/mcp", "httpUrl": "https://b/mcp"}, "http"),
    ],
)
def test_other_names_of_the_address_are_known(tmp_path: Path, entry: dict[str, Any], type_: str) -> None:
    config = read(tmp_path, json.dumps({"mcpServers": {"x": entry}})).servers["x"].config
    assert (config.type, str(config.describe()["url"])[:10]) == (type_, "https://a/")


def test_our_own_variables_are_no_inputs(tmp_path: Path) -> None:
    text = json.dumps({"servers": {"x": {"command": "${input:claude-code-mcp-token}"}}})
    found = read(tmp_path, text, CLAUDE_CODE_MCP_TOKEN="s3cret")
    assert not found.servers
    assert "s3cret" not in str(found.problems[0])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_pipe_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    found = read(tmp_path, json.dumps({"mcpServers": {"x": {"command": "x", "envFile": str(tmp_path / "pipe")}}}))
    assert "envFile" in str(found.problems[0])
    os.mkfifo(tmp_path / ".mcp.json")
    found = read_configuration(ConfigPaths(tmp_path / "own.json", tmp_path / ".claude.json", tmp_path), {})
    assert ".mcp.json" in str(found.problems[0])


def test_a_file_of_variables_that_is_not_there_is_named(tmp_path: Path) -> None:
    found = read(
        tmp_path, json.dumps({"mcpServers": {"x": {"command": "x", "envFile": "gone.env"}, "y": {"command": "y"}}})
    )
    assert list(found.servers) == ["y"]
    assert re.search(r"gone\.env\b.*No such file", str(found.problems[0]))


def test_values_in_a_file_of_variables_may_have_equal_signs_and_open_quotes(tmp_path: Path) -> None:
    (tmp_path / "e").write_text("A=b=c\nB='open\n=x\n C = d \n")
    assert read_env_file(tmp_path / "e") == {"A": "b=c", "B": "'open", "C": "d"}
