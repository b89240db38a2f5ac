"""The database of a state directory."""

from pathlib import Path

import pytest

from claude_code_mcp.core.state.database import Database


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "state")
