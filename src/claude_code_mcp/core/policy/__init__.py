"""What callers may ask for and what answers itself. Pure: no disk, no clock, no process; resolvers are handed in."""
