CREATE TABLE :table (
    source         text COLLATE "C" NOT NULL,
    dedupe_id      text COLLATE "C" NOT NULL,
    event_id       bigint NOT NULL,
    event_type     text NOT NULL,
    aggregate_type text,
    aggregate_id   text,
    payload        json,
    payload_bytes  bytea,
    content_type   text,
    headers        jsonb NOT NULL,
    created_at     timestamptz NOT NULL,
    received_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (source, dedupe_id),
    CHECK (num_nonnulls(payload, payload_bytes) = 1)
);
