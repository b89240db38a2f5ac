"""Claude Code sessions that run through another command: a plug-in for claude-code-mcp."""
