"""Push notifications: notifies people when a session needs them."""
