"""A session while it has a process: its start, its frames, the processes that may run at once."""
