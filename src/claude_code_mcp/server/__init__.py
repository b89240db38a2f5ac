"""The MCP server: its tools, its questions to clients, and its transports."""
