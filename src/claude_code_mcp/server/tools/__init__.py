"""The tool families that the MCP server offers."""
