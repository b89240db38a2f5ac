"""Questions put to a person through the client's own dialogs."""
