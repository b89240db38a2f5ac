"""What is kept: the event log of each session in memory; records, locks, spending and transcripts on disk."""
