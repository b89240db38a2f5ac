"""The MCP surface: tools, questions as dialogs, and the transports that carry them."""
