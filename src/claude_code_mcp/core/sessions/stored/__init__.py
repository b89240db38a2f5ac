"""Sessions on disk: their stores and records, the list of sessions, and everything done to one that need not run."""
