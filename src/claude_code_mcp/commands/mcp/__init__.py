"""`claude-code-mcp mcp`: the MCP servers of the hub, from the shell."""
