"""Who we are to a remote server: OAuth, where tokens are kept, and signing in."""
