"""Programs for maintainers: the generated pages of the documentation, and the list of user-facing strings."""
