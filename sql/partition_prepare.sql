-- The first short step of partitioning a table in use: from here on no id is assigned that would
-- not fit into the future first partition, and all new keys are stored. Both hold for every
-- transaction that begins afterwards, because the lock has waited for the earlier ones.

DO $prepare$
DECLARE
    width CONSTANT bigint := 4294967296;
    last  bigint;
BEGIN
    IF EXISTS (SELECT FROM pg_constraint WHERE conrelid = 'outbox_events'::regclass AND conname = 'outbox_events_bound') THEN
        RETURN; -- an earlier call was interrupted after this step
    END IF;
    LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE;
    SELECT greatest(max(id), outbox_last_id(), 0) INTO last FROM outbox_events;
    IF last > 9223372036854775807 - 1000 * width THEN
        RAISE EXCEPTION 'the highest id, %, leaves no room for partitions', last
            USING HINT = 'Give the event with that id a lower one, or delete it.';
    END IF;
    -- With room for the events written until the second step.
    EXECUTE format('ALTER TABLE outbox_events ADD CONSTRAINT outbox_events_bound CHECK (id < %s) NOT VALID',
        ((last + width / 2) / width + 1) * width);
    CREATE TRIGGER outbox_events_key AFTER INSERT ON outbox_events
        FOR EACH ROW WHEN (NEW.idempotency_key IS NOT NULL) EXECUTE FUNCTION outbox_key();
    CREATE TRIGGER outbox_events_key_gone AFTER DELETE ON outbox_events
        FOR EACH ROW WHEN (OLD.idempotency_key IS NOT NULL) EXECUTE FUNCTION outbox_key();
    CREATE TRIGGER outbox_events_keys_gone AFTER TRUNCATE ON outbox_events
        FOR EACH STATEMENT EXECUTE FUNCTION outbox_key();
END
$prepare$;
