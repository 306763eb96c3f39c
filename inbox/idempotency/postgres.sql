-- The table of idempotency.Postgres. This script may be run repeatedly, and by
-- several programs at once. :schema stands for the quoted name of an existing schema.

-- 'ntfi' in ASCII: two programs that start together must not both create.
SELECT pg_advisory_xact_lock(1853122153);

CREATE TABLE IF NOT EXISTS :schema.idempotency_keys (
    key         text COLLATE "C" PRIMARY KEY,
    token       text COLLATE "C" NOT NULL,
    fingerprint text COLLATE "C" NOT NULL,
    expires_at  timestamptz NOT NULL,
    answer      bytea
);

-- For the purge alone.
CREATE INDEX IF NOT EXISTS idempotency_keys_expires_at ON :schema.idempotency_keys (expires_at);

COMMENT ON TABLE :schema.idempotency_keys IS
    'Idempotency keys of HTTP requests that are in progress or have been answered.';
COMMENT ON COLUMN :schema.idempotency_keys.key IS
    'A hash of the scope and the key.';
COMMENT ON COLUMN :schema.idempotency_keys.token IS
    'Of the request that holds the key or has held it: no other request can change the row before it expires.';
COMMENT ON COLUMN :schema.idempotency_keys.fingerprint IS
    'A hash of method, URI and body.';
COMMENT ON COLUMN :schema.idempotency_keys.expires_at IS
    'The end of the lease, or of the answer''s retention, by the clock of this database. Afterwards the key is free.';
COMMENT ON COLUMN :schema.idempotency_keys.answer IS
    'Status, headers and body; null while the request is in progress.';
