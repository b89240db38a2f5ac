"""The tables of a team: names, shares, and the embedded authorization server."""

from ...core.state.database import Tables

TABLES = Tables(
    "team",
    (
        """
        CREATE TABLE person_names (
            name TEXT PRIMARY KEY, issuer TEXT NOT NULL, subject TEXT NOT NULL, since REAL NOT NULL
        ) STRICT, WITHOUT ROWID;

        -- `grantee` is a principal, or `group:` and the name of a group.
        CREATE TABLE shares (
            session_id TEXT NOT NULL, grantee TEXT NOT NULL, access TEXT NOT NULL, granted_by TEXT NOT NULL,
            at REAL NOT NULL, PRIMARY KEY (session_id, grantee)
        ) STRICT, WITHOUT ROWID;
        INSERT INTO changes VALUES ('shares', 0, 0);

        -- The embedded authorization server. Everything of a person ends with the person: no `subject` is given twice.
        CREATE TABLE people (
            subject TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, groups TEXT NOT NULL, invited_at REAL NOT NULL,
            console_until REAL NOT NULL
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE invites (
            hash TEXT PRIMARY KEY, subject TEXT NOT NULL REFERENCES people (subject) ON DELETE CASCADE,
            expires_at REAL NOT NULL
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX invites_by_person ON invites (subject);
        CREATE TABLE passkeys (
            credential_id BLOB PRIMARY KEY, subject TEXT NOT NULL REFERENCES people (subject) ON DELETE CASCADE,
            public_key BLOB NOT NULL, sign_count INTEGER NOT NULL, created_at REAL NOT NULL, used_at REAL NOT NULL
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX passkeys_by_person ON passkeys (subject);

        CREATE TABLE oauth_clients (
            client_id TEXT PRIMARY KEY, metadata TEXT NOT NULL, registered_at REAL NOT NULL, used_at REAL
        ) STRICT, WITHOUT ROWID;
        -- All that follows from one consent; codes and tokens end with it.
        CREATE TABLE oauth_grants (
            grant_id TEXT PRIMARY KEY, subject TEXT NOT NULL REFERENCES people (subject) ON DELETE CASCADE,
            client_id TEXT NOT NULL, scopes TEXT NOT NULL, resource TEXT NOT NULL, granted_at REAL NOT NULL
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX oauth_grants_by_person ON oauth_grants (subject, granted_at);
        CREATE INDEX oauth_grants_by_client ON oauth_grants (client_id);
        CREATE TABLE oauth_codes (
            hash TEXT PRIMARY KEY, grant_id TEXT NOT NULL REFERENCES oauth_grants (grant_id) ON DELETE CASCADE,
            redirect_uri TEXT NOT NULL, redirect_given INTEGER NOT NULL, challenge TEXT NOT NULL,
            expires_at REAL NOT NULL, used INTEGER NOT NULL
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX oauth_codes_by_grant ON oauth_codes (grant_id);
        CREATE TABLE oauth_tokens (
            hash TEXT PRIMARY KEY, grant_id TEXT NOT NULL REFERENCES oauth_grants (grant_id) ON DELETE CASCADE,
            kind TEXT NOT NULL, scopes TEXT NOT NULL, expires_at REAL NOT NULL, used INTEGER NOT NULL
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX oauth_tokens_by_grant ON oauth_tokens (grant_id);
        CREATE INDEX oauth_tokens_by_age ON oauth_tokens (expires_at);
        """,
    ),
)
