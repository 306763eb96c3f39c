-- Functions for actions that the role of a relay may not take: they run as the owner of the tables.
-- See partitions.sql for their protection from objects of the caller,
-- and for those that only a partitioned table has.
--
-- Runs with every migration. Every statement may be repeated.

-- The id that was drawn last.
CREATE OR REPLACE FUNCTION outbox_last_id() RETURNS bigint
    LANGUAGE plpgsql STABLE SECURITY DEFINER AS $last$
DECLARE
    n bigint;
BEGIN
    EXECUTE pg_catalog.format('SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM %s',
        pg_catalog.pg_get_serial_sequence('outbox_events', 'id')) INTO n;
    RETURN n;
END
$last$;
COMMENT ON FUNCTION outbox_last_id() IS 'The highest id that outbox_events has given out.';

DO $rights$
DECLARE
    place CONSTANT name := (SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = 'outbox_events'::regclass);
    owner CONSTANT name := (SELECT pg_get_userbyid(c.relowner) FROM pg_class c WHERE c.oid = 'outbox_events'::regclass);
    f     text;
BEGIN
    FOREACH f IN ARRAY ARRAY['outbox_last_id()'] LOOP
        -- pg_temp last: otherwise a caller could create a table of that name that goes first.
        EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, %I, pg_temp', f, place);
        EXECUTE format('ALTER FUNCTION %s OWNER TO %I', f, owner);
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f);
    END LOOP;
END
$rights$;
