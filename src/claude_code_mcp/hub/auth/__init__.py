"""Authentication to remote servers: OAuth, token storage and sign-in."""
