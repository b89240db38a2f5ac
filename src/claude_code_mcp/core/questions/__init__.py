"""Pending questions: the broker, how questions read, forms in both directions, the reply to the CLI."""
