-- Sizes, version 6: how long the names of an aggregate and the headers may be.
--
-- Runs after plain.sql, in the same way. Every statement may run again without
-- harm.

-- NOT VALID: the table is not read while writers wait, and events that were written before may be
-- larger. Such an event must still be marked done, and an UPDATE checks all constraints: hence the
-- condition on the state, which also spares that UPDATE the work.
DO $sizes$
DECLARE
    known CONSTANT name[] := ARRAY(SELECT conname FROM pg_constraint WHERE conrelid = 'outbox_events'::regclass);
BEGIN
    IF 'outbox_events_aggregate_short' <> ALL (known) THEN
        ALTER TABLE outbox_events ADD CONSTRAINT outbox_events_aggregate_short
            CHECK (state <> 'fresh' OR octet_length(aggregate_type) <= 1024 AND octet_length(aggregate_id) <= 1024) NOT VALID;
    END IF;
    IF 'outbox_events_headers_small' <> ALL (known) THEN
        ALTER TABLE outbox_events ADD CONSTRAINT outbox_events_headers_small
            CHECK (state <> 'fresh' OR octet_length(headers::text) <= 65536) NOT VALID;
    END IF;
END
$sizes$;

INSERT INTO outbox_migrations (version, name) VALUES (6, 'sizes') ON CONFLICT DO NOTHING;
