"""Tells people elsewhere that a session needs them: what is told, to whom, and how it gets there."""
