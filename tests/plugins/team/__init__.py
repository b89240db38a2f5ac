"""Access tokens of authorization servers: one that tests can have lie, and real ones."""
