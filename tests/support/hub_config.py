"""Configurations of the hub, read from a file as the product reads them."""

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from claude_code_mcp.hub.config_files import ConfigPaths, HubConfig, read_configuration


def parse_servers(servers: Mapping[str, Any], environment: Mapping[str, str]) -> HubConfig:
    """The configuration of a `mcp.json` of our own with these entries, and nothing else."""
    with TemporaryDirectory() as directory:
        file = Path(directory) / "mcp.json"
        file.write_text(json.dumps({"mcpServers": dict(servers)}), encoding="utf-8")
        return read_configuration(ConfigPaths(file, managed=Path(directory) / "managed"), environment)
