"""The official conformance suite against this server: `make conformance`."""
