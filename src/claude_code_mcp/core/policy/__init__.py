"""What callers may request, and which questions rules answer. Pure: no disk, no clock, no process; resolvers are
parameters."""
