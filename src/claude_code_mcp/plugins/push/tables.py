"""The tables of push."""

from ...core.state.database import Tables

TABLES = Tables(
    "push",
    (
        """
        CREATE TABLE deliveries (
            delivery_id TEXT PRIMARY KEY, server TEXT NOT NULL, principal TEXT NOT NULL, receiver_id TEXT NOT NULL,
            at REAL NOT NULL, notice TEXT NOT NULL
        ) STRICT, WITHOUT ROWID;
        """,
    ),
)
