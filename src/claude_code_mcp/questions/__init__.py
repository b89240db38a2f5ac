"""Pending questions: how they read, who may answer, what the answer means to the CLI."""
