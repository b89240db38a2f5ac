"""Many sessions: their turns, their processes, their limits. The only user of `claude`."""
