"""The instant greeting on stdio: first answers from a manifest while the server is still being loaded."""
