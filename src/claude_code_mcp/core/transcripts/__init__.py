"""What is read and followed: the event log of each session in memory, transcripts on disk, and the index of these."""
