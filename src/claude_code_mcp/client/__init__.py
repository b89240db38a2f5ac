"""The client side for people: sessions, questions and messages through MCP, like any other client."""
