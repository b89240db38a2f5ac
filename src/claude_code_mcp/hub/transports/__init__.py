"""Ways to reach a server. Each is an asynchronous context manager that yields two streams."""
