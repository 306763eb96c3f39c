-- Pauses and relays, version 7: requests of people to all relays, and reports of relays to people.
--
-- Runs after sizes.sql, in the same way. Every statement may run again
-- without harm.

CREATE TABLE IF NOT EXISTS outbox_pauses (
    destination   text        PRIMARY KEY,
    paused_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    paused_by     text        NOT NULL,
    database_user text        NOT NULL DEFAULT session_user,
    reason        text        NOT NULL DEFAULT '',
    CONSTRAINT outbox_pauses_by_given CHECK (paused_by <> '')
);
COMMENT ON TABLE outbox_pauses IS
    'Destinations to which no relay delivers, until their row is deleted: notifyd pause writes it, notifyd resume deletes it. Relays look about once a second.';
COMMENT ON COLUMN outbox_pauses.destination IS 'Name of the destination. Its events wait and lose no attempt.';
COMMENT ON COLUMN outbox_pauses.paused_at IS 'When it was paused.';
COMMENT ON COLUMN outbox_pauses.paused_by IS 'Who did it, unverified: user and host, or the value of --actor.';
COMMENT ON COLUMN outbox_pauses.database_user IS 'Role of the database session.';
COMMENT ON COLUMN outbox_pauses.reason IS 'Why, for people who find it paused. Empty: not given.';

-- A relay writes its row when it has taken the advisory lock that proves its life. Without that lock
-- the row is that of a dead relay, and the next relay deletes it.
CREATE TABLE IF NOT EXISTS outbox_relays (
    owner      bigint      PRIMARY KEY,
    process    integer     NOT NULL,
    host       text        NOT NULL,
    version    text        NOT NULL DEFAULT '',
    config     text        NOT NULL DEFAULT '',
    started_at timestamptz NOT NULL,
    loaded_at  timestamptz NOT NULL,
    refused    text
);
COMMENT ON TABLE outbox_relays IS 'The live relays, and the report of each; for people, no relay depends on it. A row without the lock of its owner is out of date.';
COMMENT ON COLUMN outbox_relays.owner IS 'The number of the relay, as in its leases: that of its advisory lock.';
COMMENT ON COLUMN outbox_relays.process IS 'The process id of the relay on its host.';
COMMENT ON COLUMN outbox_relays.host IS 'The name of the host.';
COMMENT ON COLUMN outbox_relays.version IS 'The version of the program. Empty: not known.';
COMMENT ON COLUMN outbox_relays.config IS 'The configuration file, with its whole path. Empty: a program that embeds notifyd.';
COMMENT ON COLUMN outbox_relays.started_at IS 'When the process was started.';
COMMENT ON COLUMN outbox_relays.loaded_at IS 'When the configuration in force was read.';
COMMENT ON COLUMN outbox_relays.refused IS 'Why the last reload was refused: the configuration before it is in force. NULL: it was not.';

INSERT INTO outbox_migrations (version, name) VALUES (7, 'pauses and relays') ON CONFLICT DO NOTHING;
