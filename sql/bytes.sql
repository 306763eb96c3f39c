-- Bytes, version 11: payloads that are not JSON.
--
-- Runs after exactly_once.sql, in the same way. Every statement may run again
-- without harm.

-- A column beside payload, and not another type for it: that would rewrite the table, and every JSON
-- payload would be read and written through a cast.
ALTER TABLE outbox_events
    ADD COLUMN IF NOT EXISTS payload_bytes bytea,
    ADD COLUMN IF NOT EXISTS content_type text,
    ALTER COLUMN payload DROP NOT NULL;

-- NOT VALID, as in sizes.sql: the table is not read while writers wait. All events from before comply.
-- A media type goes into headers of protocols, hence printable ASCII alone.
DO $bytes$
DECLARE
    known CONSTANT name[] := ARRAY(SELECT conname FROM pg_constraint WHERE conrelid = 'outbox_events'::regclass);
BEGIN
    IF 'outbox_events_one_payload' <> ALL (known) THEN
        ALTER TABLE outbox_events ADD CONSTRAINT outbox_events_one_payload
            CHECK (num_nonnulls(payload, payload_bytes) = 1) NOT VALID;
    END IF;
    IF 'outbox_events_content_type_valid' <> ALL (known) THEN
        ALTER TABLE outbox_events ADD CONSTRAINT outbox_events_content_type_valid CHECK (content_type IS NULL OR octet_length(content_type) <= 255
            AND content_type COLLATE "C" ~ '^[!-~]+/[!-~][ -~]*$'
            AND (payload_bytes IS NOT NULL OR content_type ~* '[/+]json *(;|$)')) NOT VALID;
    END IF;
END
$bytes$;

COMMENT ON TABLE outbox_events IS
    'Events that notifyd delivers. Insert event_type and payload, or payload_bytes, in your own transaction; leave the rest to their defaults unless you need them.';
COMMENT ON COLUMN outbox_events.payload IS
    'The event itself. Type json, not jsonb: the payload reaches the consumer byte for byte. NULL: it is in payload_bytes.';
COMMENT ON COLUMN outbox_events.payload_bytes IS
    'In place of payload: an event that is not JSON, such as Avro or Protobuf. It reaches the consumer byte for byte.';
COMMENT ON COLUMN outbox_events.content_type IS
    'Media type of the payload, such as application/x-protobuf. NULL: application/json for payload, application/octet-stream for payload_bytes.';

ALTER TABLE outbox_audit ADD COLUMN IF NOT EXISTS old_payload_bytes bytea;
COMMENT ON COLUMN outbox_audit.old_payload_bytes IS 'The payload that an edit has replaced, of an event that is not JSON.';

-- Who may write a payload may write either kind.
DO $rights$
DECLARE
    who text;
BEGIN
    FOR who IN SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
        FROM pg_attribute c, aclexplode(c.attacl) AS a
        WHERE c.attrelid = 'outbox_events'::regclass AND c.attname = 'payload' AND a.privilege_type = 'INSERT'
    LOOP
        EXECUTE 'GRANT INSERT (payload_bytes, content_type) ON outbox_events TO ' || who;
    END LOOP;
END
$rights$;

INSERT INTO outbox_migrations (version, name) VALUES (11, 'bytes') ON CONFLICT DO NOTHING;
