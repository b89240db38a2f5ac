"""The MCP client side: one connection to every configured MCP server, shared by sessions, clients and commands."""

from ..sdk_version import check_sdk_version as _check_sdk_version

_check_sdk_version()
