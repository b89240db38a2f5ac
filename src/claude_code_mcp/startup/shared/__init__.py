"""One server for every client of this user: where it is found, how it is started, and the relay in front of it."""
