-- Limits, version 12: how much of their rate destinations have used, over all relays.
--
-- Runs after bytes.sql, in the same way. Every statement may run again without harm.

-- One row per destination and key that was busy a moment ago; rewritten in place. A row whose time is past says
-- the same as none, and is deleted.
CREATE TABLE IF NOT EXISTS outbox_limits (
    tat         timestamptz NOT NULL,
    granted     bigint      NOT NULL,
    destination text        NOT NULL,
    key         text        NOT NULL,
    PRIMARY KEY (destination, key)
) WITH (fillfactor = 50);

COMMENT ON TABLE outbox_limits IS
    'How much of their rate_limit destinations have used, over all relays. A destination without a row has all of its burst.';
COMMENT ON COLUMN outbox_limits.destination IS 'Name of the destination.';
COMMENT ON COLUMN outbox_limits.key IS 'The value of rate_key, or its hash if it is long; empty without one, and for events of which it cannot be told.';
COMMENT ON COLUMN outbox_limits.tat IS
    'Theoretical arrival time: when all that was granted so far will have come, at the rate. An event is granted as long as this is less than the burst ahead of the clock.';
COMMENT ON COLUMN outbox_limits.granted IS 'For how many events the last request was granted.';

-- As in functions.sql: relays from before this version need no new grants to start.
DO $rights$
DECLARE
    who name;
BEGIN
    FOR who IN SELECT DISTINCT pg_get_userbyid(a.grantee) FROM pg_class c, aclexplode(c.relacl) AS a
        WHERE c.oid = 'outbox_events'::regclass AND a.privilege_type = 'DELETE' AND a.grantee NOT IN (0, c.relowner)
    LOOP
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_limits TO %I', who);
    END LOOP;
END
$rights$;

INSERT INTO outbox_migrations (version, name) VALUES (12, 'limits') ON CONFLICT DO NOTHING;
