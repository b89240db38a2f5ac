"""The console's server, through which people set up their receivers."""

from tests.plugins.console.conftest import alice, bob, console

__all__ = ["alice", "bob", "console"]
