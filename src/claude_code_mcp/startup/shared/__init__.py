"""One server for all clients of a user: its location, its start, and the relay in front of it."""
