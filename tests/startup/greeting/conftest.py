"""What the greeting is tested with: a manifest that is not stale. One test fails for one that is; the others that rest
on it are skipped, since they would only repeat that in other words."""

import asyncio
import json

import pytest

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.service import Service
from claude_code_mcp.server.manifest import first_answers
from claude_code_mcp.server.server import McpServer
from claude_code_mcp.startup.greeting.first_answers import SHIPPED, Manifest, read

STALE = "the greeting manifest is stale: run `make manifest`"


@pytest.fixture(scope="session")
def fresh_manifest() -> Manifest | None:
    """The shipped manifest; None if it is not what the server says, or was made with another SDK."""
    manifest = read(SHIPPED)
    if manifest is None:
        return None
    answers, otherwise = asyncio.run(first_answers(McpServer(Service(load_settings({}))).server()))
    shipped = {
        method: {version: json.loads(line) for version, line in by.items()} for method, by in manifest.results.items()
    }
    return manifest if (shipped, manifest.otherwise) == (answers, otherwise) else None


@pytest.fixture
def needs_fresh_manifest(fresh_manifest: Manifest | None) -> None:
    if fresh_manifest is None:
        pytest.skip(STALE)
