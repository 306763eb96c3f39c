-- The objects that a table partitioned by day needs: see partition.go for the conversion, and
-- docs/design/tables.md for the reasons.
--
-- Runs like the other files, if the table is partitioned or about to be, and with every migration.
-- Every statement may be repeated.

-- A unique index of a partitioned table must contain the partition key, so idempotency keys have a
-- table of their own, maintained by triggers.
CREATE TABLE IF NOT EXISTS outbox_keys (
    event_id        bigint NOT NULL,
    event_type      text   COLLATE "C" NOT NULL,
    idempotency_key text   COLLATE "C" NOT NULL,
    PRIMARY KEY (event_type, idempotency_key)
);
CREATE INDEX IF NOT EXISTS outbox_keys_event ON outbox_keys (event_id);
COMMENT ON TABLE outbox_keys IS
    'The idempotency keys of the events in a partitioned outbox_events. Maintained by triggers.';
COMMENT ON COLUMN outbox_keys.event_id IS 'outbox_events.id of the event that has the key.';
COMMENT ON COLUMN outbox_keys.event_type IS 'Copied from outbox_events.';
COMMENT ON COLUMN outbox_keys.idempotency_key IS 'Copied from outbox_events.';

-- The functions run as the owner of the tables, so that writers need no privileges on outbox_keys
-- and relays none on partitions. search_path is set at the end of this file: no object of a caller
-- is ever run. Nor is an object of another role that may create objects in the schema: functions
-- are named with their schema, and operators get exactly the types of PostgreSQL's own operators,
-- because PostgreSQL would prefer a foreign operator that fits better.

CREATE OR REPLACE FUNCTION outbox_key() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER AS $key$
DECLARE
    holder bigint;
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        DELETE FROM outbox_keys;
        RETURN NULL;
    ELSIF TG_OP = 'DELETE' THEN
        DELETE FROM outbox_keys
        WHERE event_type = OLD.event_type AND idempotency_key = OLD.idempotency_key AND event_id = OLD.id;
        RETURN NULL;
    END IF;
    LOOP
        -- Waits for a transaction that is inserting the same key.
        INSERT INTO outbox_keys (event_id, event_type, idempotency_key)
        VALUES (NEW.id, NEW.event_type, NEW.idempotency_key) ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN NEW;
        END IF;
        EXIT WHEN EXISTS (SELECT FROM outbox_keys k
            JOIN outbox_events e ON e.id = k.event_id AND e.event_type = k.event_type AND e.idempotency_key = k.idempotency_key
            WHERE k.event_type = NEW.event_type AND k.idempotency_key = NEW.idempotency_key);
        -- Its event is missing: the partition was dropped, or the insert had another
        -- conflict. So the key is free. The row is locked, and then read with a
        -- statement of its own, which sees concurrent changes.
        SELECT event_id INTO holder FROM outbox_keys
        WHERE event_type = NEW.event_type AND idempotency_key = NEW.idempotency_key FOR UPDATE;
        IF FOUND AND NOT EXISTS (SELECT FROM outbox_events
            WHERE id = holder AND event_type = NEW.event_type AND idempotency_key = NEW.idempotency_key) THEN
            UPDATE outbox_keys SET event_id = NEW.id
            WHERE event_type = NEW.event_type AND idempotency_key = NEW.idempotency_key;
            RETURN NEW;
        END IF;
    END LOOP;
    IF TG_WHEN = 'AFTER' THEN -- the table has a unique index still
        RETURN NEW;
    ELSIF pg_catalog.current_setting('notifyd.duplicate', true) = 'ignore' THEN
        RETURN NULL;
    END IF;
    RAISE unique_violation USING
        MESSAGE = 'duplicate key value violates unique constraint "outbox_events_idempotency"',
        DETAIL = pg_catalog.format('Key (event_type, idempotency_key)=(%s, %s) already exists.', NEW.event_type, NEW.idempotency_key),
        HINT = 'SET LOCAL notifyd.duplicate = ''ignore'' skips events whose key is there already.',
        SCHEMA = TG_TABLE_SCHEMA, TABLE = 'outbox_events', CONSTRAINT = 'outbox_events_idempotency';
END
$key$;
COMMENT ON FUNCTION outbox_key() IS 'Lets at most one event per type and idempotency key into a partitioned outbox_events.';

-- The ranges of ids, lowest first. The default partition has none. A partition is closed when the
-- next one receives the events: on the day of that one.
CREATE OR REPLACE FUNCTION outbox_partitions() RETURNS TABLE (name text, low bigint, high bigint, day date, closed date)
    LANGUAGE sql STABLE AS $partitions$
    -- Each bound is read once: between two times a partition may be dropped.
    WITH b AS MATERIALIZED (
        SELECT c.relname, pg_catalog.pg_get_expr(c.relpartbound, c.oid) AS bound
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'outbox_events'::regclass::oid AND NOT i.inhdetachpending)
    SELECT p.name, p.low, p.high, p.day, min(p.day) OVER (ORDER BY p.low ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)
    FROM (
        SELECT b.relname::text AS name,
            CASE WHEN b.bound LIKE '%(MINVALUE)%' THEN -9223372036854775808
                ELSE substring(b.bound FROM 'FROM \(''?(-?[0-9]+)')::bigint END AS low,
            substring(b.bound FROM 'TO \(''?(-?[0-9]+)')::bigint AS high,
            pg_catalog.to_date(substring(b.relname FROM '^outbox_events_p([0-9]{8})$'), 'YYYYMMDD') AS day
        FROM b WHERE b.bound <> 'DEFAULT') AS p
    WHERE p.high IS NOT NULL
    ORDER BY p.low
$partitions$;
COMMENT ON FUNCTION outbox_partitions() IS 'The partitions of outbox_events, except the default one.';

-- The assigned ids that lie in no partition, and in none that outbox_partition_drop has dropped: that of a partition which
-- somebody has detached. Its events may come back.
CREATE OR REPLACE FUNCTION outbox_away() RETURNS int8multirange
    LANGUAGE sql STABLE AS $away$
    SELECT CASE WHEN outbox_last_id() < 1 THEN '{}' ELSE int8multirange(int8range(1, outbox_last_id(), '[]')) END - coalesce((SELECT range_agg(int8range(p.low, p.high)) FROM outbox_partitions() AS p), '{}') - m.dropped
    FROM outbox_mode AS m
$away$;
COMMENT ON FUNCTION outbox_away() IS 'The assigned ids that lie in no partition of outbox_events, unless the partition was dropped by retention.';

-- Creates the partitions of the current day and of those ahead, and moves the sequence to that of
-- the day. If it had to create that one, the third call moves the sequence, each call in a
-- transaction of its own. A writer never waits for them: attaching a partition lets writers pass, and
-- the lock on the default partition, which no writer needs, is waited for no longer than relays can
-- bear.
CREATE OR REPLACE FUNCTION outbox_partitions_extend(at timestamptz, ahead integer) RETURNS SETOF text
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '1s' AS $extend$
DECLARE
    width CONSTANT bigint := 4294967296;
    place CONSTANT name := (SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = 'outbox_events'::regclass::oid);
    owner CONSTANT name := (SELECT pg_catalog.pg_get_userbyid(c.relowner) FROM pg_class c WHERE c.oid = 'outbox_events'::regclass::oid);
    space CONSTANT oid := (SELECT c.relnamespace FROM pg_class c WHERE c.oid = 'outbox_events'::regclass::oid);
    today CONSTANT date := (at AT TIME ZONE 'UTC')::date;
    newest date;
    part   text;
    first  bigint;
    ready  bigint;
BEGIN
    -- Only the owner may lock this table in this mode: any role could take an advisory lock, and then no
    -- partition would be created.
    BEGIN
        LOCK TABLE outbox_migrations IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    EXCEPTION WHEN lock_not_available THEN
        RETURN; -- another relay is doing it
    END;
    -- A transaction that has written before a partition existed may not see it, and
    -- would fail with an id that belongs there. So ids go into a partition once all
    -- transactions have ended that began before its comment was written, which
    -- happens when every new transaction sees the partition.
    SELECT p.low INTO ready
    FROM outbox_partitions() AS p JOIN pg_class c ON c.relname = p.name AND c.relnamespace = space
    JOIN pg_description d ON d.objoid = c.oid AND d.classoid = 'pg_class'::regclass::oid AND d.objsubid = 0
    WHERE p.day <= today AND p.low > outbox_last_id() AND NOT EXISTS (
        SELECT FROM pg_locks l JOIN pg_locks x ON x.virtualtransaction = l.virtualtransaction
        WHERE l.locktype = 'relation' AND l.relation = 'outbox_events'::regclass::oid AND l.mode = 'RowExclusiveLock' AND l.granted
        AND l.database = (SELECT b.oid FROM pg_database b WHERE b.datname = pg_catalog.current_database())
        AND x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock' AND x.granted
        AND pg_catalog.age(d.xmin) >= 0 AND pg_catalog.age(x.transactionid) >= pg_catalog.age(d.xmin))
    ORDER BY p.day DESC LIMIT 1;
    FOR part IN
        SELECT p.name FROM outbox_partitions() AS p JOIN pg_class c ON c.relname = p.name AND c.relnamespace = space
        WHERE p.day IS NOT NULL AND pg_catalog.obj_description(c.oid, 'pg_class') IS NULL
    LOOP
        EXECUTE pg_catalog.format('COMMENT ON TABLE %I.%I IS %L', place, part, 'A partition of outbox_events. Before this comment, no id went into it.');
    END LOOP;
    FOR n IN 0..ahead LOOP
        SELECT max(day) INTO newest FROM outbox_partitions();
        CONTINUE WHEN today + n <= newest; -- also where a clock has gone back: ids only go up
        part := 'outbox_events_p' || pg_catalog.to_char((today + n)::timestamp, 'YYYYMMDD');
        -- Behind all ranges and all ids in use, and where no id was chosen by hand.
        -- A new table begins with id 1.
        SELECT greatest(coalesce(max(high), 0), CASE WHEN outbox_last_id() > 0 THEN (outbox_last_id() / width + 1) * width END)
        INTO first FROM outbox_partitions();
        WHILE EXISTS (SELECT FROM outbox_events WHERE id >= first AND id < first + width) LOOP
            first := first + width;
        END LOOP;
        EXECUTE pg_catalog.format('CREATE TABLE %I.%I (LIKE outbox_events INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED
            INCLUDING STORAGE INCLUDING COMPRESSION) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
            autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_vacuum_cost_limit = 1000)', place, part);
        EXECUTE pg_catalog.format('ALTER TABLE %I.%I OWNER TO %I', place, part, owner);
        EXECUTE pg_catalog.format('ALTER TABLE %I.outbox_events ATTACH PARTITION %I.%I FOR VALUES FROM (%s) TO (%s)', place, place, part, first, first + width);
        RETURN NEXT part;
    END LOOP;
    IF ready > outbox_last_id() THEN -- NULL is not
        -- Writers cannot draw as many ids as are in between while this happens.
        PERFORM pg_catalog.setval(pg_catalog.pg_get_serial_sequence('outbox_events', 'id'), ready, false);
    END IF;
END
$extend$;
COMMENT ON FUNCTION outbox_partitions_extend(timestamptz, integer) IS
    'Creates the partitions of a day and of the days ahead, and directs new events into that of the day. Returns the created ones.';

-- The remaining deliveries of events with ids from low (inclusive) to past (exclusive), which keep
-- these events; NULL for none. A queue shows them by marks, a stream by positions, or by its
-- beginning as long as there are no positions.
CREATE OR REPLACE FUNCTION outbox_waits(low bigint, past bigint) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER AS $waits$
DECLARE
    found bigint;
    last  bigint;
    p     record;
BEGIN
    IF (SELECT m.mode FROM outbox_mode AS m) = 'queue' THEN
        SELECT id INTO found FROM outbox_events WHERE state = 'fresh' AND id >= low AND id < past ORDER BY id LIMIT 1;
        IF found IS NOT NULL THEN
            RETURN pg_catalog.format('event %s is waiting', found);
        END IF;
    ELSE
        SELECT id INTO last FROM outbox_events WHERE id >= low AND id < past ORDER BY id DESC LIMIT 1;
        -- The operators of ranges are polymorphic: a foreign operator for exactly these
        -- types would fit better, so they are named with their schema.
        FOR p IN
            SELECT r.who, r.head, (SELECT pg_catalog.lower(s) FROM pg_catalog.unnest(r.open) AS s
                WHERE s OPERATOR(pg_catalog.&&) pg_catalog.int8range(low, past) ORDER BY pg_catalog.lower(s) LIMIT 1) AS gap
            FROM (SELECT head, open, CASE WHEN destination = '' THEN 'the unrouted scanner'
                    ELSE pg_catalog.format('destination %s', destination) END AS who
                FROM outbox_positions
                UNION ALL SELECT head, open, pg_catalog.format('replay %s of %s', id, destination) FROM outbox_replays
                WHERE state = 'running' AND to_id >= low
                UNION ALL SELECT origin_head, origin_open, 'the stream has had no relay yet and' FROM outbox_mode
                WHERE NOT EXISTS (SELECT FROM outbox_positions)) AS r
            ORDER BY r.head, r.who
        LOOP
            IF p.head < last THEN -- NULL is not
                RETURN pg_catalog.format('behind: %s is at event %s', p.who, p.head);
            ELSIF p.gap IS NOT NULL THEN
                RETURN pg_catalog.format('behind: %s waits for event %s', p.who, CASE WHEN p.gap < low THEN low ELSE p.gap END);
            END IF;
        END LOOP;
    END IF;
    SELECT event_id INTO found FROM outbox_deliveries WHERE event_id >= low AND event_id < past ORDER BY event_id LIMIT 1;
    IF found IS NOT NULL THEN
        RETURN pg_catalog.format('event %s has a delivery that waits or is dead', found);
    END IF;
    RETURN NULL;
END
$waits$;
COMMENT ON FUNCTION outbox_waits(bigint, bigint) IS 'Why events with ids in a range have to stay: an undelivered event among them. NULL: they need not stay.';

-- Drops a partition in which every event was done before a time; in a stream, one in which every
-- event was written before that time and delivered. Returns NULL, or the reason why the partition
-- stays.
CREATE OR REPLACE FUNCTION outbox_partition_drop(partition text, before timestamptz) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '100ms' AS $drop$
DECLARE
    place CONSTANT name := (SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = 'outbox_events'::regclass::oid);
    spare CONSTANT name := (SELECT c.relname FROM pg_partitioned_table t JOIN pg_class c ON c.oid = t.partdefid WHERE t.partrelid = 'outbox_events'::regclass::oid);
    queue CONSTANT boolean := (SELECT m.mode = 'queue' FROM outbox_mode AS m);
    first bigint;
    past  bigint;
    found bigint;
    why   text;
BEGIN
    IF pg_catalog.current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION 'a partition is not dropped in a transaction that sees the past'
            USING HINT = 'SET TRANSACTION ISOLATION LEVEL READ COMMITTED.';
    END IF;
    BEGIN
        LOCK TABLE outbox_migrations IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    EXCEPTION WHEN lock_not_available THEN
        RETURN 'busy: another relay is dropping it';
    END;
    IF EXISTS (SELECT FROM outbox_mode AS m WHERE m.becoming IS NOT NULL) THEN
        RETURN 'busy: the mode of the table is being changed';
    END IF;
    SELECT low, high INTO first, past FROM outbox_partitions() WHERE name = partition;
    IF first IS NULL THEN
        RETURN 'there is no such partition';
    ELSIF past > outbox_last_id() + 1 THEN
        RETURN 'new events still go into it';
    END IF;
    FOR attempt IN 1..10 LOOP
        why := outbox_waits(first, past);
        IF why IS NOT NULL THEN
            RETURN why;
        END IF;
        IF attempt = 1 AND queue THEN
            -- Reads all of it, once: before the locks, because it may take long.
            EXECUTE pg_catalog.format('SELECT id FROM %I.%I WHERE state <> ''done'' OR processed_at >= $1 OR processed_at IS NULL LIMIT 1', place, partition)
                INTO found USING before;
            IF found IS NOT NULL THEN
                RETURN pg_catalog.format('event %s is not done, or was not long enough ago', found);
            END IF;
        ELSIF attempt = 1 THEN
            -- Only the last ones by id: reading the whole stream would take too long.
            -- created_at is when a transaction began, so an event below can be younger
            -- than these by the duration of the transactions of so many events.
            EXECUTE pg_catalog.format('SELECT id FROM (SELECT id, created_at FROM %I.%I ORDER BY id DESC LIMIT 10000) AS e WHERE created_at >= $1 LIMIT 1', place, partition)
                INTO found USING before;
            IF found IS NOT NULL THEN
                RETURN pg_catalog.format('event %s was not written long enough ago', found);
            END IF;
        END IF;
        -- Writers wait behind this for as long as it waits: 100 ms at most. It waits for
        -- uncommitted inserts, so afterwards there are none.
        BEGIN
            EXECUTE pg_catalog.format('LOCK TABLE ONLY %I.outbox_events, ONLY %I.%I IN ACCESS EXCLUSIVE MODE', place, place, partition);
            IF spare IS NOT NULL THEN
                EXECUTE pg_catalog.format('LOCK TABLE ONLY %I.%I IN ACCESS EXCLUSIVE MODE', place, spare);
            END IF;
            -- No session may set a position back into the partition from now on, or begin a replay in it.
            PERFORM FROM outbox_positions ORDER BY destination, shard FOR SHARE;
            IF outbox_waits(first, past) IS NOT NULL THEN
                RETURN 'an event in it must still be delivered';
            END IF;
            EXECUTE pg_catalog.format('DROP TABLE %I.%I', place, partition);
            UPDATE outbox_mode AS m SET dropped = m.dropped + int8multirange(int8range(first, past));
            RETURN NULL;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            PERFORM pg_catalog.pg_sleep(0.1::float8 + pg_catalog.random() * 0.4::float8);
        END;
    END LOOP;
    RETURN 'busy: its lock is unavailable, a transaction that uses outbox_events is open';
END
$drop$;
COMMENT ON FUNCTION outbox_partition_drop(text, timestamptz) IS
    'Drops a partition of outbox_events if everything in it was done before a time. Returns NULL, or the reason why the partition stays.';

-- Deletes the keys of events that were dropped with their partition, in batches. Returns the id
-- after which to continue, NULL at the end.
CREATE OR REPLACE FUNCTION outbox_keys_purge(after bigint, batch integer) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER AS $purge$
    WITH seen AS MATERIALIZED (SELECT event_id, event_type, idempotency_key FROM outbox_keys WHERE event_id > after ORDER BY event_id LIMIT batch),
        gone AS (DELETE FROM outbox_keys AS k USING seen AS s
            WHERE k.event_type = s.event_type AND k.idempotency_key = s.idempotency_key AND k.event_id = s.event_id
            AND NOT EXISTS (SELECT FROM outbox_events AS e
                WHERE e.id = s.event_id AND e.event_type = s.event_type AND e.idempotency_key = s.idempotency_key))
    SELECT CASE WHEN count(*) = batch THEN max(event_id) END FROM seen
$purge$;
COMMENT ON FUNCTION outbox_keys_purge(bigint, integer) IS
    'Deletes idempotency keys whose event is missing. Returns the id after which to continue, NULL at the end.';

DO $rights$
DECLARE
    place CONSTANT name := (SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = 'outbox_events'::regclass);
    owner CONSTANT name := (SELECT pg_get_userbyid(c.relowner) FROM pg_class c WHERE c.oid = 'outbox_events'::regclass);
    f     text;
    who   oid;
BEGIN
    EXECUTE format('ALTER TABLE outbox_keys OWNER TO %I', owner);
    FOREACH f IN ARRAY ARRAY['outbox_key()', 'outbox_partitions()', 'outbox_away()', 'outbox_partitions_extend(timestamptz, integer)',
        'outbox_waits(bigint, bigint)', 'outbox_partition_drop(text, timestamptz)', 'outbox_keys_purge(bigint, integer)'] LOOP
        -- pg_temp last: otherwise a caller could create a table of that name that goes first.
        EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, %I, pg_temp', f, place);
        EXECUTE format('ALTER FUNCTION %s OWNER TO %I', f, owner);
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f);
        -- A role that may delete events is a relay, and may maintain the partitions.
        FOR who IN SELECT DISTINCT a.grantee FROM pg_class c, aclexplode(c.relacl) AS a
            WHERE c.oid = 'outbox_events'::regclass AND a.privilege_type = 'DELETE' AND a.grantee NOT IN (0, c.relowner)
        LOOP
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', f, pg_get_userbyid(who));
        END LOOP;
    END LOOP;
END
$rights$;
