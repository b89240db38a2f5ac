"""The embedded authorization server: people sign in with passkeys, and allow clients to work in their name."""
