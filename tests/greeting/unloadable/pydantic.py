"""Takes the place of a library that the server needs, so that only the greeting is ever there."""

raise ImportError("this server is not to be loaded")
