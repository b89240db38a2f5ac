"""The terminal interface: sessions, conversations and questions through MCP, as any other client has them."""
