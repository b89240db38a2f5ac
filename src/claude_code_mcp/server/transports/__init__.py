"""How clients reach the MCP server: stdio, the socket of the shared server, and HTTP."""
