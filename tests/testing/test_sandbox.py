"""The sandbox: a private home and an environment with nothing in it by accident."""

from pathlib import Path

import pytest

from claude_code_mcp.testing import Sandbox


def test_directories_are_made_below_the_root(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path / "new", "http://127.0.0.1:1")
    assert all(place.is_dir() for place in (sandbox.home, sandbox.project, sandbox.temporary))
    assert sandbox.home.is_relative_to(tmp_path)


def test_nothing_of_the_real_account_is_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_MODEL", "CLAUDECODE", "CLAUDE_CONFIG_DIR", "PYTHONPATH"):
        monkeypatch.setenv(name, "real")
    environment = Sandbox(tmp_path, "http://127.0.0.1:1").environment()
    assert "real" not in environment.values()
    assert environment["ANTHROPIC_API_KEY"] == "sk-scripted"
    assert environment["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:1"


def test_every_place_lies_inside_the_root(tmp_path: Path) -> None:
    environment = Sandbox(tmp_path, "http://127.0.0.1:1").environment()
    places = {name: value for name, value in environment.items() if name.startswith(("HOME", "TMP", "XDG_"))}
    assert len(places) >= 3
    assert all(Path(place).is_relative_to(tmp_path) for place in places.values())


def test_extra_variables_are_added_or_replace(tmp_path: Path) -> None:
    environment = Sandbox(tmp_path, "u").environment(ANTHROPIC_API_KEY="sk-bad", MORE="1")
    assert (environment["ANTHROPIC_API_KEY"], environment["MORE"]) == ("sk-bad", "1")


def test_windows_gets_its_own_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("SYSTEMROOT", "C:\\Windows")
    environment = Sandbox(tmp_path, "u").environment()
    assert environment["SYSTEMROOT"] == "C:\\Windows"
    assert Path(environment["USERPROFILE"]).is_relative_to(tmp_path)
    assert not any(name.startswith("XDG_") for name in environment)
