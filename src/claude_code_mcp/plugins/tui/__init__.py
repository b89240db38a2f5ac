"""The terminal interface: sessions, conversations and questions, as an ordinary MCP client."""
