"""The tables of the state database, as steps from each version of the schema to the next.

The version of a database is the number of steps that were applied to it (`PRAGMA user_version`). A step is never
changed once it was released: a change of the schema is a new step at the end, and every later version reads what every
earlier one wrote. A database of a later version than ours is refused, untouched.
"""

APPLICATION_ID = 0x43434D53
"""Stands in the file's header, so that a database of another program is recognised."""

STEPS: tuple[str, ...] = (
    """
    CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;

    -- `change` is taken from `changes` at every write, so that a reader finds what is new since it last looked;
    -- a removal gives all readers a new `epoch` instead, after which they read everything again.
    CREATE TABLE changes (topic TEXT PRIMARY KEY, change INTEGER NOT NULL, epoch INTEGER NOT NULL) STRICT;
    INSERT INTO changes VALUES ('sessions', 0, 0), ('marks', 0, 0), ('durable', 0, 0);

    -- What a listing shows stands before `body`: a long body lies on pages of its own, which a listing passes over.
    CREATE TABLE sessions (
        session_id TEXT PRIMARY KEY,
        revision INTEGER NOT NULL,
        change INTEGER NOT NULL,
        principal TEXT NOT NULL,
        config_dir TEXT NOT NULL,
        written_at REAL NOT NULL,
        running INTEGER NOT NULL,
        cancelled INTEGER NOT NULL,
        state TEXT NOT NULL,
        usage TEXT NOT NULL,
        checksum BLOB NOT NULL,
        body TEXT NOT NULL
    ) STRICT;
    CREATE INDEX sessions_by_change ON sessions (change);

    CREATE TABLE holders (
        session_id TEXT PRIMARY KEY, server TEXT NOT NULL, token TEXT NOT NULL, description TEXT NOT NULL,
        wanted INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE open_questions (
        question_id TEXT PRIMARY KEY, session_id TEXT NOT NULL, server TEXT NOT NULL, line TEXT NOT NULL,
        asked_at REAL NOT NULL
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE moved_ids (
        old_id TEXT PRIMARY KEY, new_id TEXT NOT NULL, config_dir TEXT NOT NULL, written_at REAL NOT NULL
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE marks (
        session_id TEXT NOT NULL, mark TEXT NOT NULL, PRIMARY KEY (session_id, mark)
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE spending (
        day TEXT NOT NULL, principal TEXT NOT NULL, session_id TEXT NOT NULL, usd REAL NOT NULL,
        PRIMARY KEY (day, principal, session_id)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE reservations (
        session_id TEXT PRIMARY KEY, principal TEXT NOT NULL, server TEXT NOT NULL, remaining REAL NOT NULL
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE tasks (
        task_id TEXT PRIMARY KEY, principal TEXT NOT NULL, updated_at REAL NOT NULL, body TEXT NOT NULL
    ) STRICT;

    CREATE TABLE tickets (
        hash TEXT PRIMARY KEY, principal TEXT NOT NULL, credential TEXT NOT NULL, expires_at REAL NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE sign_ins (
        id TEXT PRIMARY KEY, principal TEXT NOT NULL, credential TEXT NOT NULL, device TEXT NOT NULL,
        csrf_hash TEXT NOT NULL, created_at REAL NOT NULL, used_at REAL NOT NULL
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE deliveries (
        delivery_id TEXT PRIMARY KEY, server TEXT NOT NULL, principal TEXT NOT NULL, receiver_id TEXT NOT NULL,
        at REAL NOT NULL, notice TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE documents (
        kind TEXT NOT NULL, key TEXT NOT NULL, written_at REAL NOT NULL, body TEXT NOT NULL, PRIMARY KEY (kind, key)
    ) STRICT;
    """,
)

VERSION = len(STEPS)
