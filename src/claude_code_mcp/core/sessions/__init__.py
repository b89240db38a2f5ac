"""Many sessions: their turns, their processes, their limits."""
