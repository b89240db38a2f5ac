"""Run Claude Code from any MCP client, and give every session your MCP servers through one shared hub."""

__version__ = "0.1.0"
