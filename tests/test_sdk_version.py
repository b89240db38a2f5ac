"""Another minor version of the MCP SDK is refused at the start, in one clear sentence."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from claude_code_mcp.sdk_version import UnsupportedSdk, check_sdk_version, installed_version

COMMAND = (sys.executable, "-m", "claude_code_mcp")


@pytest.mark.parametrize("name", ["mcp", "mcp_types", "pydantic"])
def test_the_installed_version_is_the_one_that_its_metadata_has(name: str) -> None:
    assert installed_version(name) == metadata.version(name)


def test_the_installed_sdk_is_supported() -> None:
    check_sdk_version()


@pytest.mark.parametrize("name", ["mcp", "mcp_types"])
@pytest.mark.parametrize("version", ["2.2.7", "2.4.0", "3.0.0rc1", "23.0"])
def test_another_version_is_refused_with_what_was_found_and_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, version: str
) -> None:
    (tmp_path / f"{name}-{version}.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UnsupportedSdk) as refused:
        check_sdk_version()
    package = name.replace("_", "-")
    assert f"{package}>=2.3,<2.4, and {package} {version} is installed" in str(refused.value)


def test_a_version_that_cannot_be_found_is_accepted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "missing")])
    check_sdk_version()


@pytest.mark.programs
@pytest.mark.parametrize("arguments", [(), ("serve", "--http", "127.0.0.1:0"), ("mcp", "status")], ids=str)
def test_every_start_says_so_instead_of_failing_later(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "packages" / "mcp-2.4.0.dist-info").mkdir(parents=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path / "packages")}
    done = subprocess.run(
        [*COMMAND, *arguments], input="", capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("claude-code-mcp: This version of claude-code-mcp needs mcp>=2.3,<2.4, and mcp 2.4.0")
    assert "Traceback" not in done.stderr
