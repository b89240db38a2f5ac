"""Questions to people: the broker, their text, their forms, and the reply to the CLI."""
