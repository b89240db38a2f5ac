"""Questions of Claude Code sessions in a Slack channel: a plug-in for claude-code-mcp."""
