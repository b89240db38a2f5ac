"""What the `mcp` command does; its command line is in `commands/mcp.py`, and loads these only when called."""
