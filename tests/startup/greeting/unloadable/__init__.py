"""A path on which the server cannot be loaded."""
