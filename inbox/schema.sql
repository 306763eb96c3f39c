-- The table of package inbox, in the database of the consumer. This script may be run
-- repeatedly, and by several programs at once. :schema stands for the quoted name of an
-- existing schema.

-- 'ntfx' in ASCII: two programs that start together must not both create.
SELECT pg_advisory_xact_lock(1853122168);

CREATE TABLE IF NOT EXISTS :schema.inbox_events (
    -- "C": ids are compared byte by byte, so that an upgrade of the operating system's
    -- locales cannot corrupt the index.
    consumer   text COLLATE "C" NOT NULL,
    event_id   text COLLATE "C" NOT NULL,
    handled_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, event_id)
);

-- For the purge alone. Times only grow, so it costs little.
CREATE INDEX IF NOT EXISTS inbox_events_handled_at ON :schema.inbox_events (handled_at);

COMMENT ON TABLE :schema.inbox_events IS
    'Events that a consumer has handled, one row each, written in the transaction that did the work.';
COMMENT ON COLUMN :schema.inbox_events.consumer IS
    'Who has handled it: each consumer handles an event once.';
COMMENT ON COLUMN :schema.inbox_events.event_id IS
    'The id that the event carries, as text.';
COMMENT ON COLUMN :schema.inbox_events.handled_at IS
    'When the transaction began, by the clock of this database. Rows older than any redelivery can go.';
