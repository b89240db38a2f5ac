"""How clients reach the MCP server: stdio and HTTP."""
