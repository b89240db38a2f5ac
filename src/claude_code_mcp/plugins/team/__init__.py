"""Several people on one server: sign-in and shared sessions."""
