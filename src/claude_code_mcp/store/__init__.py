"""What is kept: the event log of each session in memory, transcripts and locks on disk."""
