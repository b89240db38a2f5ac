"""The transports to MCP servers, one file each. All yield the two streams of `hub/streams.py`."""
