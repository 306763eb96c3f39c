-- How often the tables are vacuumed. PostgreSQL's default is a fifth of a table: in a log of a
-- hundred million events that is twenty million dead rows.
--
-- Runs with every migration, and keeps settings made by hand. It holds up neither writers nor
-- relays.

DO $storage$
DECLARE
    t record;
BEGIN
    FOR t IN
        SELECT c.oid::regclass AS name, c.oid = 'outbox_deliveries'::regclass AS small
        FROM pg_class c
        WHERE c.relkind = 'r'
            AND (c.oid IN ('outbox_events'::regclass, 'outbox_deliveries'::regclass)
                OR c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'outbox_events'::regclass))
            AND NOT EXISTS (SELECT FROM unnest(c.reloptions) AS o WHERE o LIKE 'autovacuum\_vacuum\_%')
    LOOP
        IF t.small THEN
            -- Small, and rewritten with every attempt: a pass over it costs next to nothing.
            EXECUTE format('ALTER TABLE %s SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
                autovacuum_vacuum_cost_delay = 0)', t.name);
        ELSE
            -- Each pass reads the whole indexes: so not for every thousand rows of a long log.
            EXECUTE format('ALTER TABLE %s SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
                autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_vacuum_cost_limit = 1000)', t.name);
        END IF;
    END LOOP;
END
$storage$;
