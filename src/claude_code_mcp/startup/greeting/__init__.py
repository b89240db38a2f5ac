"""Instant answers on stdio: a manifest answers a client's first requests while the server is loading."""
