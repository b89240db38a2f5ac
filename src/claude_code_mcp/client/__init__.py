"""The side of a person: sessions, questions and messages through MCP, as any other client has them."""
