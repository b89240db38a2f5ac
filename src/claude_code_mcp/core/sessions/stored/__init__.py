"""Sessions on disk: their stores and records, the list of sessions, and the operations that need no process."""
