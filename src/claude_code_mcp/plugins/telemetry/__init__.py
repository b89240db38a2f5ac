"""Observers for operators: copies of the audit trail, metrics, and traces."""
