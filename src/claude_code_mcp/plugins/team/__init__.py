"""Several people at one server: sign-in, shared sessions."""
