"""The MCP server: its tools, its questions to clients, and its transports."""

from ..sdk_version import check_sdk_version as _check_sdk_version

_check_sdk_version()
