"""The commands of `claude-code-mcp`."""
