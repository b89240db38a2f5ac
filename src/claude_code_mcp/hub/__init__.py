"""The MCP client side: every external MCP server once, for every session and every client."""
