"""Child processes: start them, contain them, read their lines, and end them with everything that they started."""
