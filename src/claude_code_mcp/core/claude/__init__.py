"""One Claude Code process: find the CLI, build its argv, frame NDJSON, speak the control protocol, stop it
cleanly. Knows nothing of MCP, of other sessions, or of who answers a question."""
