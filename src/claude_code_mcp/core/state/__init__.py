"""This product's own state: one SQLite database in the state directory, shared by all servers of the user."""
