-- Exactly once, version 9: what the position of a destination that keeps a copy of it knows of the copy.
--
-- Runs after replays.sql, in the same way. Every statement may run again without harm.

ALTER TABLE outbox_positions
    ADD COLUMN IF NOT EXISTS sealed bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS void   bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN outbox_positions.sealed IS
    'Raised, and flushed to disk, before events go to a destination with exactly_once. The copy of the position there has the number on which it relies: a higher one means that this database has lost something.';
COMMENT ON COLUMN outbox_positions.void IS
    'Copies of the position with a number in sealed up to this one do not count: the position was moved by hand, or the database has lost something.';

INSERT INTO outbox_migrations (version, name) VALUES (9, 'exactly once') ON CONFLICT DO NOTHING;
