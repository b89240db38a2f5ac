"""Decides what callers may request, and which questions rules answer. Pure: no disk, no clock, no processes; functions
that resolve paths are parameters."""
