"""What this product remembers: one SQLite database below the state directory, shared by all servers of the user."""
