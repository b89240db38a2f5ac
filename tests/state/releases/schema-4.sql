BEGIN TRANSACTION;
CREATE TABLE changes (topic TEXT PRIMARY KEY, change INTEGER NOT NULL, epoch INTEGER NOT NULL) STRICT;
INSERT INTO "changes" VALUES('sessions',4,0);
INSERT INTO "changes" VALUES('marks',2,0);
INSERT INTO "changes" VALUES('durable',0,0);
INSERT INTO "changes" VALUES('shares',0,0);
CREATE TABLE deliveries (
        delivery_id TEXT PRIMARY KEY, server TEXT NOT NULL, principal TEXT NOT NULL, receiver_id TEXT NOT NULL,
        at REAL NOT NULL, notice TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
INSERT INTO "deliveries" VALUES('msg_0123456789abcdef','0000000000000000','alice','r1',1790000000.0,'{"kind":"ended","session_id":"00000002-0000-4000-8000-000000000000","title":"Title","body":"Body","at":1790000000.0,"expires_at":4000000000.0,"question_id":null}');
CREATE TABLE documents (
        kind TEXT NOT NULL, key TEXT NOT NULL, written_at REAL NOT NULL, body TEXT NOT NULL, PRIMARY KEY (kind, key)
    ) STRICT;
INSERT INTO "documents" VALUES('push','alice',1.79482031672678279876e+09,'{"principal":"alice","events":["question","ended","stalled"],"quiet_hours":null,"receivers":[{"id":"r1","kind":"ntfy","url":"https://ntfy.example.org/topic","device":"","created_at":1790000000.0,"secret":"","token":"fixture","public_key":"","auth":""}]}');
INSERT INTO "documents" VALUES('server','ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff',1.79482031673159265518e+09,'{"handshake_only":false,"asks_for_roots":true,"asks_questions":false}');
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
INSERT INTO "facts" VALUES('earlier_files','15');
INSERT INTO "facts" VALUES('written_by','0.1.0');
CREATE TABLE group_spending (
        day TEXT NOT NULL, group_name TEXT NOT NULL, principal TEXT NOT NULL, usd REAL NOT NULL,
        PRIMARY KEY (day, group_name, principal)
    ) STRICT, WITHOUT ROWID;
INSERT INTO "group_spending" VALUES('2026-09-21','platform','alice',1.25);
CREATE TABLE invites (
        hash TEXT PRIMARY KEY, subject TEXT NOT NULL REFERENCES people (subject) ON DELETE CASCADE,
        expires_at REAL NOT NULL
    ) STRICT, WITHOUT ROWID;
INSERT INTO "invites" VALUES('c197a4dc63596c607fab79194cfcd1182e1464b964e90f7e79bc621ee8c268a4','0123456789abcdef0123456789abcdef',4000000000.0);
CREATE TABLE marks (
        session_id TEXT NOT NULL, mark TEXT NOT NULL, PRIMARY KEY (session_id, mark)
    ) STRICT, WITHOUT ROWID;
INSERT INTO "marks" VALUES('00000001-0000-4000-8000-000000000000','pinned');
INSERT INTO "marks" VALUES('00000003-0000-4000-8000-000000000000','archived');
CREATE TABLE message_keys (
        principal TEXT NOT NULL, session_id TEXT NOT NULL, key TEXT NOT NULL, message_id TEXT NOT NULL,
        digest TEXT NOT NULL, target TEXT NOT NULL, accepted INTEGER NOT NULL, server TEXT NOT NULL, at REAL NOT NULL,
        PRIMARY KEY (principal, session_id, key)
    ) STRICT, WITHOUT ROWID;
INSERT INTO "message_keys" VALUES('alice','00000001-0000-4000-8000-000000000000','a-key','00000009-0000-4000-8000-000000000000','digest','00000001-0000-4000-8000-000000000000',1,'0123456789abcdef',4000000000.0);
CREATE TABLE moved_ids (
        old_id TEXT PRIMARY KEY, new_id TEXT NOT NULL, config_dir TEXT NOT NULL, written_at REAL NOT NULL
    ) STRICT, WITHOUT ROWID;
INSERT INTO "moved_ids" VALUES('00000005-0000-4000-8000-000000000000','00000001-0000-4000-8000-000000000000','d1c0b5410b1d771c',1.79482031555684471129e+09);
CREATE TABLE oauth_clients (
        client_id TEXT PRIMARY KEY, metadata TEXT NOT NULL, registered_at REAL NOT NULL, used_at REAL
    ) STRICT, WITHOUT ROWID;
INSERT INTO "oauth_clients" VALUES('client-of-the-fixture','{}',1790000000.0,1790000000.0);
CREATE TABLE oauth_codes (
        hash TEXT PRIMARY KEY, grant_id TEXT NOT NULL REFERENCES oauth_grants (grant_id) ON DELETE CASCADE,
        redirect_uri TEXT NOT NULL, redirect_given INTEGER NOT NULL, challenge TEXT NOT NULL, expires_at REAL NOT NULL,
        used INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
INSERT INTO "oauth_codes" VALUES('1ac1337d2c06f58c847cfecc44c9d850db9d52a8c002d269ef78539bb7c355b3','grant-1','http://localhost:1/',1,'challenge',1790000060.0,1);
CREATE TABLE oauth_grants (
        grant_id TEXT PRIMARY KEY, subject TEXT NOT NULL REFERENCES people (subject) ON DELETE CASCADE,
        client_id TEXT NOT NULL, scopes TEXT NOT NULL, resource TEXT NOT NULL, granted_at REAL NOT NULL
    ) STRICT, WITHOUT ROWID;
INSERT INTO "oauth_grants" VALUES('grant-1','0123456789abcdef0123456789abcdef','client-of-the-fixture','["claude-code"]','https://claude.example.org/mcp',1790000000.0);
CREATE TABLE oauth_tokens (
        hash TEXT PRIMARY KEY, grant_id TEXT NOT NULL REFERENCES oauth_grants (grant_id) ON DELETE CASCADE,
        kind TEXT NOT NULL, scopes TEXT NOT NULL, expires_at REAL NOT NULL, used INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
INSERT INTO "oauth_tokens" VALUES('3c1bb1f88e4d9f9830582e5c8ca3d97a8e5a373b93ddfd61357a08e1896c86cc','grant-1','refresh','["claude-code"]',4000000000.0,0);
CREATE TABLE passkeys (
        credential_id BLOB PRIMARY KEY, subject TEXT NOT NULL REFERENCES people (subject) ON DELETE CASCADE,
        public_key BLOB NOT NULL, sign_count INTEGER NOT NULL, created_at REAL NOT NULL, used_at REAL NOT NULL
    ) STRICT, WITHOUT ROWID;
INSERT INTO "passkeys" VALUES(X'63726564656E7469616C','0123456789abcdef0123456789abcdef',X'7075626C6963206B6579',7,1790000000.0,1790000000.0);
CREATE TABLE people (
        subject TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, groups TEXT NOT NULL, invited_at REAL NOT NULL,
        console_until REAL NOT NULL
    ) STRICT, WITHOUT ROWID;
INSERT INTO "people" VALUES('0123456789abcdef0123456789abcdef','carol','["platform"]',1790000000.0,4000000000.0);
CREATE TABLE person_names (
        name TEXT PRIMARY KEY, issuer TEXT NOT NULL, subject TEXT NOT NULL, since REAL NOT NULL
    ) STRICT, WITHOUT ROWID;
INSERT INTO "person_names" VALUES('ann','https://id.example.org','subject-1',1790000000.0);
INSERT INTO "person_names" VALUES('carol','invited','0123456789abcdef0123456789abcdef',1790000000.0);
CREATE TABLE reservations (
        session_id TEXT PRIMARY KEY, principal TEXT NOT NULL, server TEXT NOT NULL, remaining REAL NOT NULL
    , groups TEXT NOT NULL DEFAULT '[]') STRICT, WITHOUT ROWID;
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
INSERT INTO "sessions" VALUES('00000001-0000-4000-8000-000000000000',2,1,'local','d1c0b5410b1d771c',1.79482031555672121047e+09,0,0,'idle','{"claude-haiku-4-5":[10,20,30,40,5.0]}',X'2F9F9ABAC4C90861BA5C0C82687B4CF9','{"version":1,"revision":2,"session_id":"00000001-0000-4000-8000-000000000000","owner":"local","created_at":1790000000.0,"used_at":1790000060.0,"cwd":"/src/app","options":{"cwd":null,"worktree":false,"model":null,"fallback_model":null,"permission_mode":"plan","dangerously_skip_permissions":false,"ask":true,"allowed_tools":[],"disallowed_tools":["Bash"],"tools":null,"max_turns":null,"max_budget_usd":5.0,"turn_timeout":null,"system_prompt":null,"append_system_prompt":null,"agents":null,"agent":null,"effort":null,"thinking":null,"betas":[],"additional_directories":[],"output_schema":null,"mcp_servers":null,"strict_mcp_config":false,"hub_servers":null,"setting_sources":null,"sandbox":null,"file_checkpointing":false,"include_partial_messages":true,"persist":true,"debug":false,"debug_file":null,"executable":null,"env":{}},"first_prompt":"Fix the failing test","origin":null,"cancelled":false,"running_since":null,"spent_usd":5.0,"usage":{"models":{"claude-haiku-4-5":{"input_tokens":10,"output_tokens":20,"cache_read_tokens":30,"cache_creation_tokens":40,"cost_usd":5.0}}},"model_turns":3,"outcome":{"code":"completed","result":"done","detail":"","subtype":null,"terminal_reason":null,"api_status":null,"stop_reason":null,"structured_output":null,"usage":{"models":{}},"raw_usage":{},"num_turns":0,"duration_ms":0,"duration_api_ms":0,"permission_denials":[],"exit_code":null,"error_code":null},"result_cut":false,"grants":[]}');
INSERT INTO "sessions" VALUES('00000002-0000-4000-8000-000000000000',4,2,'alice','d1c0b5410b1d771c',1.79482031555676221847e+09,0,1,'cancelled','{}',X'CF69AE2D975DC2695C5748508DDDBC05','{"version":1,"revision":4,"session_id":"00000002-0000-4000-8000-000000000000","owner":"alice","created_at":1790000000.0,"used_at":1790000060.0,"cwd":"/src/app","options":{"cwd":null,"worktree":false,"model":null,"fallback_model":null,"permission_mode":null,"dangerously_skip_permissions":false,"ask":true,"allowed_tools":[],"disallowed_tools":[],"tools":null,"max_turns":null,"max_budget_usd":null,"turn_timeout":null,"system_prompt":null,"append_system_prompt":null,"agents":null,"agent":null,"effort":null,"thinking":null,"betas":[],"additional_directories":[],"output_schema":null,"mcp_servers":null,"strict_mcp_config":false,"hub_servers":null,"setting_sources":null,"sandbox":null,"file_checkpointing":false,"include_partial_messages":true,"persist":true,"debug":false,"debug_file":null,"executable":null,"env":{}},"first_prompt":null,"origin":null,"cancelled":true,"running_since":null,"spent_usd":0.0,"usage":{"models":{}},"model_turns":0,"outcome":null,"result_cut":false,"grants":[]}');
INSERT INTO "sessions" VALUES('00000003-0000-4000-8000-000000000000',0,3,'local','d1c0b5410b1d771c',1.79482031555677819254e+09,1,0,'idle','{}',X'7141EE4158CA8B37F73945BE2F9662DA','{"version":1,"revision":0,"session_id":"00000003-0000-4000-8000-000000000000","owner":"local","created_at":1790000000.0,"used_at":1790000060.0,"cwd":"/src/app","options":{"cwd":null,"worktree":false,"model":null,"fallback_model":null,"permission_mode":null,"dangerously_skip_permissions":false,"ask":true,"allowed_tools":[],"disallowed_tools":[],"tools":null,"max_turns":null,"max_budget_usd":null,"turn_timeout":null,"system_prompt":null,"append_system_prompt":null,"agents":null,"agent":null,"effort":null,"thinking":null,"betas":[],"additional_directories":[],"output_schema":null,"mcp_servers":null,"strict_mcp_config":false,"hub_servers":null,"setting_sources":null,"sandbox":null,"file_checkpointing":false,"include_partial_messages":true,"persist":true,"debug":false,"debug_file":null,"executable":null,"env":{}},"first_prompt":null,"origin":null,"cancelled":false,"running_since":1790000030.0,"spent_usd":0.0,"usage":{"models":{}},"model_turns":0,"outcome":null,"result_cut":false,"grants":[{"type":"addRules","rules":[{"toolName":"Read"}]}]}');
INSERT INTO "sessions" VALUES('00000004-0000-4000-8000-000000000000',0,4,'','d1c0b5410b1d771c',1.79482031555679368969e+09,0,0,'error','{}',X'','');
CREATE TABLE shares (
        session_id TEXT NOT NULL, grantee TEXT NOT NULL, access TEXT NOT NULL, granted_by TEXT NOT NULL,
        at REAL NOT NULL, PRIMARY KEY (session_id, grantee)
    ) STRICT, WITHOUT ROWID;
INSERT INTO "shares" VALUES('00000001-0000-4000-8000-000000000000','bob','watch','alice',1790000000.0);
CREATE TABLE sign_ins (
        id TEXT PRIMARY KEY, principal TEXT NOT NULL, credential TEXT NOT NULL, device TEXT NOT NULL,
        csrf_hash TEXT NOT NULL, created_at REAL NOT NULL, used_at REAL NOT NULL
    ) STRICT, WITHOUT ROWID;
INSERT INTO "sign_ins" VALUES('027facfbb9653b4db7087f42a22b150aef87707026581d0e4ec9a2ad6608e9a7','alice','credential-hash','Phone','89c8c028636c8d4e821a6d1b6fba503e4fb1c11da138488a8b99d6712b59325a',4000000000.0,1.79482031556335616109e+09);
CREATE TABLE spending (
        day TEXT NOT NULL, principal TEXT NOT NULL, session_id TEXT NOT NULL, usd REAL NOT NULL,
        PRIMARY KEY (day, principal, session_id)
    ) STRICT, WITHOUT ROWID;
INSERT INTO "spending" VALUES('2026-09-21','alice','00000002-0000-4000-8000-000000000000',1.75);
INSERT INTO "spending" VALUES('2026-09-21','bob','',2.0);
CREATE TABLE tasks (
        task_id TEXT PRIMARY KEY, principal TEXT NOT NULL, updated_at REAL NOT NULL, body TEXT NOT NULL
    ) STRICT;
INSERT INTO "tasks" VALUES('task-aaaaaaaaaaaaaaaaaaaaaaaa','local',4000000000.0,'{"task_id":"task-aaaaaaaaaaaaaaaaaaaaaaaa","owner":"local","tool":"claude_code","session_id":"00000001-0000-4000-8000-000000000000","created_at":1790000000.0,"updated_at":4000000000.0,"ttl_ms":1000000000,"status":"completed","result":{"content":[]}}');
CREATE TABLE tickets (
        hash TEXT PRIMARY KEY, principal TEXT NOT NULL, credential TEXT NOT NULL, expires_at REAL NOT NULL
    ) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_by_change ON sessions (change);
CREATE INDEX message_keys_by_age ON message_keys (principal, at);
CREATE INDEX invites_by_person ON invites (subject);
CREATE INDEX passkeys_by_person ON passkeys (subject);
CREATE INDEX oauth_grants_by_person ON oauth_grants (subject, granted_at);
CREATE INDEX oauth_grants_by_client ON oauth_grants (client_id);
CREATE INDEX oauth_codes_by_grant ON oauth_codes (grant_id);
CREATE INDEX oauth_tokens_by_grant ON oauth_tokens (grant_id);
CREATE INDEX oauth_tokens_by_age ON oauth_tokens (expires_at);
COMMIT;
PRAGMA application_id = 1128484179;
PRAGMA user_version = 4;
