-- Tracing, version 3: the trace of the writer, captured with the event.
--
-- Runs after dead_letters.sql, in the same way. Every statement may run again
-- without harm.

-- A column of its own, because a default of headers would be lost to writers that set headers.
-- Added without the default first: existing rows get nothing, and none of them is rewritten.
ALTER TABLE outbox_events ADD COLUMN IF NOT EXISTS traceparent text;

-- A value that does not have the form of a traceparent (W3C Trace Context) becomes NULL: tracing
-- must never fail an insert. An unset setting is NULL, and after the transaction that had set it,
-- the empty text. The functions are bound here, so that the writer's search_path does not matter.
-- No regular expression: it would make each traced insert several times as expensive.
ALTER TABLE outbox_events ALTER COLUMN traceparent SET DEFAULT
    CASE WHEN pg_catalog.current_setting('notifyd.traceparent', true) COLLATE "C"
            LIKE '__-________________________________-________________-__'
        AND pg_catalog.translate(pg_catalog.current_setting('notifyd.traceparent', true), '0123456789abcdef', '') = '---'
    THEN pg_catalog.current_setting('notifyd.traceparent', true) END;
COMMENT ON COLUMN outbox_events.traceparent IS
    'Trace of the writer (W3C Trace Context), from the setting notifyd.traceparent. A header of that name takes precedence.';

INSERT INTO outbox_migrations (version, name) VALUES (3, 'tracing') ON CONFLICT DO NOTHING;
