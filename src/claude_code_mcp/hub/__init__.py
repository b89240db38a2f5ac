"""The MCP client side: connects to each configured MCP server once for all sessions, clients and commands."""

from ..sdk_version import check_sdk_version as _check_sdk_version

_check_sdk_version()
