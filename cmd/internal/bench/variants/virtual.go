package variants

// virtualPartitions orders the events of a virtual partition by their transactions. It reads up to the oldest open
// transaction of the whole server: nothing can commit below it. A position is a transaction and an id.
func virtualPartitions() Way {
	return Way{
		Name:  "partitions",
		About: "virtual partitions, a position each, read up to pg_snapshot_xmin in the order of transactions",
		Tables: `CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL, partition int NOT NULL DEFAULT 0, tx_id xid8 NOT NULL DEFAULT pg_current_xact_id(),
				key text NOT NULL, payload json NOT NULL, created_at timestamptz NOT NULL DEFAULT now());
			CREATE INDEX ON outbox (topic, partition, tx_id, id);
			CREATE TABLE outbox_offsets (topic text, partition int, last_tx xid8 NOT NULL DEFAULT '0', last_id bigint NOT NULL DEFAULT 0, available_after timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (topic, partition))`,
		Subscribe: subscribe,
		Left: `SELECT EXISTS (SELECT FROM outbox_offsets AS o WHERE EXISTS (
			SELECT FROM outbox AS e WHERE e.topic = o.topic AND e.partition = o.partition AND (e.tx_id, e.id) > (o.last_tx, o.last_id)))`,
		New: func(c Config) Worker {
			return &partitionWorker{
				Config: c,
				release: `UPDATE outbox_offsets SET last_tx = $3::text::xid8, last_id = $4, available_after = now() + $5::interval
					WHERE topic = $1 AND partition = $2`,
				claim: `UPDATE outbox_offsets AS o SET available_after = now() + $1::interval
					FROM (SELECT topic, partition FROM outbox_offsets WHERE available_after <= now() ORDER BY available_after LIMIT 1 FOR UPDATE SKIP LOCKED) AS free
					WHERE o.topic = free.topic AND o.partition = free.partition RETURNING o.topic, o.partition, o.last_tx::text, o.last_id`,
				read: `SELECT id, topic, key, payload, tx_id::text FROM outbox
					WHERE topic = $1 AND partition = $2 AND (tx_id, id) > ($3::text::xid8, $4) AND tx_id < pg_snapshot_xmin(pg_current_snapshot())
					ORDER BY outbox.tx_id, outbox.id LIMIT $5`,
			}
		},
	}
}
