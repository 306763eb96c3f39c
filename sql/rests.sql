-- Rests, version 10: a relay that has given up its session, and comes back by itself.
--
-- Runs after exactly_once.sql, in the same way. Every statement may run again without harm.

ALTER TABLE outbox_relays ADD COLUMN IF NOT EXISTS rests_until timestamptz;
COMMENT ON TABLE outbox_relays IS
    'The live relays, and the report of each; for people, no relay depends on it. A row without the lock of its owner is out of date, unless the relay rests.';
COMMENT ON COLUMN outbox_relays.rests_until IS 'When the relay, which has no session until then, looks for events again at the latest. NULL: it does not rest.';

INSERT INTO outbox_migrations (version, name) VALUES (10, 'rests') ON CONFLICT DO NOTHING;
