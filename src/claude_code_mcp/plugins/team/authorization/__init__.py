"""The embedded authorization server: people sign in with passkeys and allow clients to act in their name."""
