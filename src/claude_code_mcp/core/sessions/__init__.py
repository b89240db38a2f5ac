"""Sessions: their turns, processes and limits."""
