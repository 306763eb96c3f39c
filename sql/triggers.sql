-- The triggers of notifyd, and what they run. This file runs with every migration, and may be
-- repeated: it restores what is missing, and takes no lock that writers wait for unless a trigger
-- changes.
--
-- The notify trigger notifies relays of new events if one listens and none polls. A transaction
-- with a pending NOTIFY takes one lock for the whole cluster and holds it until its commit is
-- flushed, so that notifying commits happen one after the other. A relay that sweeps the table holds
-- one advisory lock exclusively, and each relay that listens holds another one shared. The trigger tests
-- both. docs/design/wake.md has the protocol and its proof.
--
-- SET notifyd.notify = 'auto' | 'always' | 'off' before running this file selects the mode, for this
-- run. Without it the installed mode stays; the initial one is auto.
--
-- And the line of writers, which is not there at first: SET notifyd.serialize = 'on' | 'off'.

DO $first$
BEGIN
    IF to_regprocedure('outbox_notify_auto()') IS NULL AND coalesce(current_setting('notifyd.notify', true), '') = '' THEN
        SET notifyd.notify = 'auto';
    END IF;
END
$first$;

-- One function for each mode rather than one with a switch: the trigger runs in every transaction
-- that writes an event.
--
-- They run as the writer, with the writer's search_path. So every function, type and operator below
-- is named with its schema: otherwise a role that may create objects in a schema on that path could
-- add one of the same name, and the writer would run it. SET search_path on the functions would
-- also help, but every writer would pay for it.
CREATE OR REPLACE FUNCTION outbox_notify_auto() RETURNS trigger
    LANGUAGE plpgsql AS $notify$
DECLARE
    -- 1853122162 is 'ntfr' in ASCII. The oid keeps tables of other schemas apart.
    -- Nothing else is computed before the test: this much every writer pays.
    key     CONSTANT bigint := (1853122162::bigint OPERATOR(pg_catalog.<<) 32) OPERATOR(pg_catalog.|) TG_RELID::bigint;
    channel pg_catalog.text;
    hash    integer;
    ids     bigint[];
BEGIN
    -- Locked and unlocked in one expression: a long transaction must not hold the
    -- lock. If it is taken, a relay polls and finds the rows without a notification.
    -- Locks are not subject to snapshots, so this is right at every isolation level.
    IF NOT (pg_catalog.pg_try_advisory_lock_shared(key) AND pg_catalog.pg_advisory_unlock_shared(key)) THEN
        RETURN NULL;
    END IF;
    channel := CASE WHEN TG_TABLE_SCHEMA OPERATOR(pg_catalog.=) 'public' THEN 'outbox_events'
        ELSE TG_TABLE_SCHEMA::pg_catalog.text OPERATOR(pg_catalog.||) '.outbox_events' END;
    hash := pg_catalog.hashtext(channel);
    -- 1853122163 is 'ntfs' in ASCII. A relay that listens holds this lock shared. So if this writer gets it exclusively, or
    -- another writer has it at this moment, no relay listens: one that begins to listen looks for this row.
    -- Nor does it notify while the server's queue is more than half full: at its end this commit would be
    -- refused. Asking moves the tail of the queue; relays poll meanwhile.
    IF NOT (pg_catalog.pg_try_advisory_lock(1853122163, hash) AND pg_catalog.pg_advisory_unlock(1853122163, hash))
        AND pg_catalog.pg_try_advisory_lock_shared(1853122163, hash) AND pg_catalog.pg_advisory_unlock_shared(1853122163, hash)
        AND pg_catalog.pg_notification_queue_usage() OPERATOR(pg_catalog.<) 0.5::pg_catalog.float8 THEN
        SELECT pg_catalog.array_agg(id) INTO ids FROM (SELECT id FROM outbox_inserted LIMIT 65) AS t;
        IF pg_catalog.array_length(ids, 1) OPERATOR(pg_catalog.>) 64 THEN
            -- Too many to name: look at the table.
            PERFORM pg_catalog.pg_notify(channel, '');
        ELSE
            PERFORM pg_catalog.pg_notify(channel, id::pg_catalog.text) FROM pg_catalog.unnest(ids) AS id;
        END IF;
    END IF;
    RETURN NULL;
END
$notify$;
COMMENT ON FUNCTION outbox_notify_auto() IS
    'Notifies of new events if a relay listens and none polls. Installed by notifyd migrate --notify auto.';

CREATE OR REPLACE FUNCTION outbox_notify_always() RETURNS trigger
    LANGUAGE plpgsql AS $notify$
DECLARE
    channel CONSTANT pg_catalog.text := CASE WHEN TG_TABLE_SCHEMA OPERATOR(pg_catalog.=) 'public' THEN 'outbox_events'
        ELSE TG_TABLE_SCHEMA::pg_catalog.text OPERATOR(pg_catalog.||) '.outbox_events' END;
    ids     bigint[];
BEGIN
    IF pg_catalog.pg_notification_queue_usage() OPERATOR(pg_catalog.>=) 0.5::pg_catalog.float8 THEN
        RETURN NULL; -- at the end of the server's queue this commit would be refused
    END IF;
    SELECT pg_catalog.array_agg(id) INTO ids FROM (SELECT id FROM outbox_inserted LIMIT 65) AS t;
    IF pg_catalog.array_length(ids, 1) OPERATOR(pg_catalog.>) 64 THEN
        PERFORM pg_catalog.pg_notify(channel, '');
    ELSE
        PERFORM pg_catalog.pg_notify(channel, id::pg_catalog.text) FROM pg_catalog.unnest(ids) AS id;
    END IF;
    RETURN NULL;
END
$notify$;
COMMENT ON FUNCTION outbox_notify_always() IS
    'Notifies of every new event. Installed by notifyd migrate --notify always.';

-- Serializes writers: each transaction gets its ids after those before it have ended, so
-- that ids are in the order of commits. The lock is taken before the statement draws its first id, and
-- released when the commit is visible. Under ROLLBACK TO it goes with the ids that were drawn behind it.
-- Nobody but the owner may lock outbox_mode in this mode, which conflicts with nothing but itself and
-- maintenance of that table: any role could take an advisory lock, and keep all writers waiting.
CREATE OR REPLACE FUNCTION outbox_serialize() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $serialize$
BEGIN
    EXECUTE pg_catalog.format('LOCK TABLE %I.outbox_mode IN SHARE UPDATE EXCLUSIVE MODE', TG_TABLE_SCHEMA);
    RETURN NULL;
END
$serialize$;
REVOKE ALL ON FUNCTION outbox_serialize() FROM PUBLIC;
COMMENT ON FUNCTION outbox_serialize() IS
    'Serializes writers, so that ids are in the order of commits. Installed by notifyd migrate --serialize-writers on.';

-- A trigger instead of the relay, so that every dead letter has its fingerprint, also if a
-- person buries it. It must never fail: the burial would fail, too. So the hash accepts
-- any text in any encoding and is not forbidden by FIPS, and the character classes are spelt out,
-- whatever the locale.
CREATE OR REPLACE FUNCTION outbox_fingerprint() RETURNS trigger
    LANGUAGE plpgsql AS $fingerprint$
DECLARE
    t text := pg_catalog.left(coalesce(NEW.last_error, ''), 2000);
BEGIN
    -- "quoted", with escapes; the closing quote may have been cut off.
    t := pg_catalog.regexp_replace(t, '"([\\].|[^"\\])*("|$)', '""', 'g');
    t := pg_catalog.regexp_replace(t, '`[^`]*`', '``', 'g');
    -- Not the apostrophe of a word.
    t := pg_catalog.regexp_replace(t, '(^|[^A-Za-z0-9])''[^'']*''', '\1''''', 'g');
    -- URLs, mail addresses, [IPv6], names of hosts.
    t := pg_catalog.regexp_replace(t, '[A-Za-z][A-Za-z0-9+.-]*://[^[:space:]<>]+', '://', 'g');
    t := pg_catalog.regexp_replace(t, '[^[:space:]<>(),;:="]+@[^[:space:]<>(),;:="]+', '@', 'g');
    t := pg_catalog.regexp_replace(t, '\[[0-9A-Fa-f:.]+(%[A-Za-z0-9]+)?\]', '#', 'g');
    t := pg_catalog.regexp_replace(t, '[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+){2,}', '#', 'g');
    -- Whatever has a digit in it: numbers, durations, UUIDs, hashes.
    t := pg_catalog.regexp_replace(t, '[A-Za-z0-9_.-]*[0-9][A-Za-z0-9_.-]*', '#', 'g');
    t := pg_catalog.regexp_replace(t, '[[:space:]]+', ' ', 'g');
    -- The beginning: where a text was shortened depends on what stands in it.
    NEW.error_fingerprint := pg_catalog.right(pg_catalog.lpad(
        pg_catalog.to_hex(pg_catalog.hashtextextended(pg_catalog.left(t, 300), 0)), 16, '0'), 12);
    RETURN NEW;
END
$fingerprint$;
COMMENT ON FUNCTION outbox_fingerprint() IS 'Sets error_fingerprint of a dead letter.';

-- A destination can receive several dead letters of one event, one after the other. Whoever ends the delivery of the
-- first one deletes the row, as that of any delivery: the rest becomes a new row in the same transaction.
CREATE OR REPLACE FUNCTION outbox_dead_letters() RETURNS trigger
    LANGUAGE plpgsql AS $letters$
BEGIN
    EXECUTE pg_catalog.format('INSERT INTO %I.%I (event_id, destination, event_type, state, available_at, shard, dead_letters)
        VALUES ($1, $2, $3, ''retry'', pg_catalog.clock_timestamp(), $4, $5)', TG_TABLE_SCHEMA, TG_TABLE_NAME)
        USING OLD.event_id, OLD.destination, OLD.event_type, OLD.shard, OLD.dead_letters OPERATOR(pg_catalog.-) 0;
    RETURN NULL;
END
$letters$;
COMMENT ON FUNCTION outbox_dead_letters() IS 'Stores the dead letters that remain when the delivery of the first one has ended.';

DO $install$
DECLARE
    events  CONSTANT regclass := 'outbox_events'::regclass;
    -- A disabled trigger does not notify: the installed mode is off.
    current text := (SELECT p.proname FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
                     WHERE t.tgrelid = events AND t.tgname = 'outbox_events_notify' AND t.tgenabled <> 'D');
    mode    text := coalesce(nullif(current_setting('notifyd.notify', true), ''),
                             substring(current FROM '^outbox_notify_(.*)$'), 'off');
BEGIN
    IF mode NOT IN ('auto', 'always', 'off') THEN
        RAISE EXCEPTION 'unknown notify mode %', quote_literal(mode) USING HINT = 'Use auto, always or off.';
    END IF;
    -- Only if the mode changes: creating a trigger locks the table against writers.
    IF mode = 'off' THEN
        IF current IS NOT NULL THEN
            DROP TRIGGER outbox_events_notify ON outbox_events;
        END IF;
    ELSIF current IS DISTINCT FROM 'outbox_notify_' || mode THEN
        EXECUTE format('CREATE OR REPLACE TRIGGER outbox_events_notify AFTER INSERT ON outbox_events
                        REFERENCING NEW TABLE AS outbox_inserted
                        FOR EACH STATEMENT EXECUTE FUNCTION %I()', 'outbox_notify_' || mode);
    END IF;
END
$install$;

DO $line$
DECLARE
    wanted  CONSTANT text := coalesce(current_setting('notifyd.serialize', true), '');
    -- A disabled trigger does not serialize.
    present CONSTANT boolean := EXISTS (SELECT FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
        WHERE t.tgrelid = 'outbox_events'::regclass AND t.tgname = 'outbox_events_serialize' AND t.tgenabled IN ('O', 'A') AND p.proname = 'outbox_serialize');
BEGIN
    IF wanted NOT IN ('on', 'off', '') THEN
        RAISE EXCEPTION 'writers cannot be serialized %', quote_literal(wanted) USING HINT = 'Use on or off.';
    END IF;
    -- Only for a change: creating a trigger locks the table against writers, and so waits for those
    -- that have drawn ids.
    IF wanted = 'off' THEN
        DROP TRIGGER IF EXISTS outbox_events_serialize ON outbox_events;
    ELSIF wanted = 'on' AND NOT present THEN
        CREATE OR REPLACE TRIGGER outbox_events_serialize BEFORE INSERT ON outbox_events
            FOR EACH STATEMENT EXECUTE FUNCTION outbox_serialize();
    END IF;
END
$line$;

DO $dead$
BEGIN
    -- Only if it is missing: creating a trigger locks the table.
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'outbox_deliveries'::regclass AND tgname = 'outbox_deliveries_fingerprint') THEN
        CREATE TRIGGER outbox_deliveries_fingerprint BEFORE INSERT OR UPDATE ON outbox_deliveries
            FOR EACH ROW WHEN (NEW.state = 'dead') EXECUTE FUNCTION outbox_fingerprint();
    END IF;
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'outbox_deliveries'::regclass AND tgname = 'outbox_deliveries_dead_letters') THEN
        CREATE TRIGGER outbox_deliveries_dead_letters AFTER DELETE ON outbox_deliveries
            FOR EACH ROW WHEN (jsonb_array_length(OLD.dead_letters) > 1) EXECUTE FUNCTION outbox_dead_letters();
    END IF;
END
$dead$;

RESET notifyd.notify;
RESET notifyd.serialize;
