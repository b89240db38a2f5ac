"""The MCP client side: one connection to every configured MCP server, shared by sessions, clients and commands."""
