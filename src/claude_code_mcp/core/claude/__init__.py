"""One Claude Code process: finding the CLI, building its arguments, its protocol, and stopping it cleanly. Independent
of MCP, of other sessions, and of who answers questions."""
