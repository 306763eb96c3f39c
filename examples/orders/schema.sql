-- The tables of the shop. The others are those of notifyd.
SELECT pg_advisory_xact_lock(1853122163); -- several shops may start together

CREATE TABLE IF NOT EXISTS orders (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer text NOT NULL,
    request  text NOT NULL, -- the Idempotency-Key
    item     text NOT NULL,
    UNIQUE (customer, request)
);

CREATE TABLE IF NOT EXISTS stock (
    item   text PRIMARY KEY,
    pieces int NOT NULL CHECK (pieces >= 0)
);

INSERT INTO stock VALUES ('lamp', 1000), ('chair', 1000) ON CONFLICT DO NOTHING;
