"""Manifests: the shipped one is up to date, the others are found by what they depend on, and damage is noticed."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import platformdirs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.service import Service
from claude_code_mcp.sdk_version import installed_version
from claude_code_mcp.server.manifest import leave_manifest
from claude_code_mcp.server.server import McpServer
from claude_code_mcp.startup.greeting import first_answers
from claude_code_mcp.startup.greeting.first_answers import Manifest, find, read, read_json, write

from .conftest import STALE

RESULTS = {"initialize": {"2025-11-25": b'{"a":1}', "2025-06-18": b'{"b":2}'}, "tools/list": {"2025-11-25": b'{"c":3}'}}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_shipped_manifest_is_what_the_server_says(fresh_manifest: Manifest | None) -> None:
    assert fresh_manifest is not None, STALE


def test_a_manifest_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write(str(tmp_path / "new" / "manifest"), RESULTS, "2025-11-25", {})
    found = read(str(tmp_path / "new" / "manifest"))
    assert found is not None
    assert (found.results, found.otherwise) == (RESULTS, "2025-11-25")
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["manifest"]


MADE_HERE = {name: installed_version(name) or "" for name in first_answers.MADE_WITH}


@pytest.mark.parametrize("version", ["0.0.1", "2.2.9", "2.4.0", "3.0.0"])
def test_a_manifest_of_another_minor_version_of_the_sdk_is_not_used(tmp_path: Path, version: str) -> None:
    write(str(tmp_path / "manifest"), RESULTS, "2025-11-25", {**MADE_HERE, "mcp": version})
    assert read(str(tmp_path / "manifest")) is None


@pytest.mark.parametrize(("name", "version"), [("pydantic", "2.99.0"), ("mcp", "2.3.99"), ("mcp_types", "2.3.99")])
def test_a_manifest_made_with_another_release_is_used_once_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, version: str
) -> None:
    shipped = tmp_path / "shipped"
    write(str(shipped), RESULTS, "2025-11-25", {**MADE_HERE, name: version})
    monkeypatch.setattr(first_answers, "SHIPPED", str(shipped))
    found, leave = find(["serve"])
    assert found is not None
    assert found.results == RESULTS
    assert leave is not None
    # What the server does once it is loaded: its own answers count from the next start on.
    own = {"initialize": {"2025-11-25": b'{"own":1}'}}
    write(leave, own, "2025-11-25", MADE_HERE)
    found, leave = find(["serve"])
    assert found is not None
    assert (found.results, leave) == (own, None)


async def test_what_the_server_leaves_is_what_it_answers_and_counts_as_checked(tmp_path: Path) -> None:
    file = str(tmp_path / "manifest")
    await leave_manifest(McpServer(Service(load_settings({}))).server(), file)
    left = read(file)
    assert left is not None
    assert left.checked
    assert b'"tools":[' in left.results["tools/list"]["2025-11-25"]


def test_two_environments_do_not_share_a_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    before = first_answers.cache_file("")
    monkeypatch.setattr(sys, "prefix", "/another/environment")
    assert first_answers.cache_file("") != before


def test_any_damaged_byte_and_any_cut_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "manifest"
    write(str(file), RESULTS, "2025-11-25", {})
    whole = file.read_bytes()
    body = whole.index(b"\n") + 1
    for place in range(body, len(whole)):
        file.write_bytes(whole[:place] + b"#" + whole[place + 1 :])
        assert read(str(file)) is None
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        assert read(str(file)) is None


@pytest.mark.parametrize("heading", ["", "[]", "{}", "null", '{"crc32": 0}', '{"crc32":0,"made_with":[],"results":{}}'])
def test_file_with_another_heading_is_not_a_manifest(tmp_path: Path, heading: str) -> None:
    (tmp_path / "manifest").write_text(f"{heading}\n")
    assert read(str(tmp_path / "manifest")) is None
    assert read(str(tmp_path)) is None


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "full").touch()
    with pytest.raises(OSError, match="taken"):
        write(str(tmp_path / "taken"), RESULTS, "2025-11-25", {})
    assert [file.name for file in tmp_path.iterdir()] == ["taken"]


async def test_a_server_that_cannot_leave_a_manifest_continues(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    await leave_manifest(McpServer(Service(load_settings({}))).server(), str(tmp_path / "file" / "manifest"))


@pytest.mark.usefixtures("needs_fresh_manifest")
def test_the_defaults_are_shipped() -> None:
    found, leave = find(["serve", "--on-disconnect", "keep"])
    assert found is not None
    assert leave is None


@pytest.mark.parametrize("argv", [["--toolsets", "query"], ["--toolsets=query"], ["--tools", "query"]])
def test_a_flag_and_its_variable_are_the_same_setting(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    by_flag = find(["serve", *argv])
    monkeypatch.setenv("CLAUDE_CODE_MCP_TOOLSETS", "query")
    assert find(["serve"]) == by_flag
    assert by_flag[0] is None
    monkeypatch.setenv("CLAUDE_CODE_MCP_TOOLSETS", "code")
    assert find(["serve"])[1] != by_flag[1]


def test_a_configuration_file_counts_by_what_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.toml"
    places = set()
    for text in ('toolsets = "query"', 'toolsets = "code"'):
        file.write_text(text)
        places.add(find(["serve", "--config", str(file)])[1])
    monkeypatch.setenv("CLAUDE_CODE_MCP_CONFIG", str(file))
    places.add(find(["serve"])[1])
    file.unlink()
    places.add(find(["serve"])[1])
    assert len(places) == 3
    assert None not in places


def test_discarded_directories_are_found_again() -> None:
    _, place = find(["serve", "--toolsets", "query"])
    assert place is not None
    write(place, RESULTS, "2025-11-25", {})
    found, leave = find(["serve", "--toolsets", "query"])
    assert found is not None
    assert found.results == RESULTS
    assert leave is None


def test_a_change_of_the_shipped_manifest_is_a_change_of_every_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, before = find(["serve", "--toolsets", "query"])
    monkeypatch.setattr(first_answers, "SHIPPED", str(tmp_path / "other"))
    _, after = find(["serve", "--toolsets", "query"])
    assert before != after


@pytest.mark.skipif(sys.platform == "win32", reason="there is no greeting on Windows")
@pytest.mark.parametrize("base", [None, "", "/somewhere/else"])
def test_the_cache_is_where_platformdirs_has_it(base: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME") if base is None else monkeypatch.setenv("XDG_CACHE_HOME", base)
    assert os.path.dirname(first_answers.cache_file("")) == platformdirs.user_cache_dir("claude-code-mcp")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES, st.booleans())
def test_json_is_read_as_the_json_module_reads_it(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert read_json(f" {text}\r\n".encode(errors="surrogatepass")) == json.loads(text) if _is_utf8(text) else True


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


@given(st.text(alphabet='{}[]",:.0123456789-+eEtrufalsn \\\n\x00', max_size=20))
def test_what_the_json_module_refuses_is_refused(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(ValueError):  # noqa: PT011 - the words are the module's own
            read_json(text.encode())
    else:
        assert read_json(text.encode()) == expected
