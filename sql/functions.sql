-- The id that was drawn last, as a view: it reads the sequence with the rights of its owner, and costs nothing beside it.
-- A relay that is at the end of a stream asks with each read, and a function would take ten times as long.
--
-- Runs with every migration. Every statement may be repeated.

DO $create$
BEGIN
    EXECUTE format('CREATE OR REPLACE VIEW outbox_last_id AS SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END AS id FROM %s',
        pg_get_serial_sequence('outbox_events', 'id'));
    EXECUTE format('ALTER VIEW outbox_last_id OWNER TO %I', (SELECT pg_get_userbyid(c.relowner) FROM pg_class c WHERE c.oid = 'outbox_events'::regclass));
END
$create$;
COMMENT ON VIEW outbox_last_id IS 'The highest id that outbox_events has given out.';
