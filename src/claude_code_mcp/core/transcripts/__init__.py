"""Session data that is read and followed: the event log in memory, transcripts on disk, and their index."""
