-- Plain queues, version 5: a queue keeps no order.
--
-- Runs after streams.sql, in the same way. Every statement may run again
-- without harm.

-- Deliveries that waited for earlier events of their aggregate are due.
UPDATE outbox_deliveries SET state = 'retry', available_at = clock_timestamp(), updated_at = clock_timestamp()
    WHERE state = 'parked' AND (SELECT mode FROM outbox_mode WHERE one) = 'queue';

-- In the first builds with streams a row was about one pattern. A relay without routes stores its
-- own; events without a route wait in outbox_deliveries, as before.
DO $routes$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_attribute WHERE attrelid = to_regclass('outbox_routes') AND attname = 'pattern' AND NOT attisdropped) THEN
        DELETE FROM outbox_routes;
        ALTER TABLE outbox_routes
            DROP COLUMN pattern,
            ADD COLUMN since bigint NOT NULL,
            ADD COLUMN until_head bigint,
            ADD COLUMN patterns text[] NOT NULL,
            ADD COLUMN others text[] NOT NULL DEFAULT '{}',
            ADD COLUMN until_open int8multirange NOT NULL DEFAULT '{}',
            ADD PRIMARY KEY (destination, since);
    END IF;
END
$routes$;

COMMENT ON COLUMN outbox_deliveries.state IS
    'retry: due at available_at. running: a relay of a queue holds the lease. parked: waits in a stream for an earlier event of its aggregate. unrouted: no route matches its type. dead: given up, kept for a person.';
COMMENT ON COLUMN outbox_deliveries.ordering_key IS 'Aggregate of the event where a stream keeps the order of aggregates.';

INSERT INTO outbox_migrations (version, name) VALUES (5, 'plain queues') ON CONFLICT DO NOTHING;
