"""Ways to reach an MCP server: a file for each. All yield the two streams of `hub/streams.py`."""
