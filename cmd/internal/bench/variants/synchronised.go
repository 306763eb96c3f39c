package variants

// synchronised makes writers take a lock before they draw an id, and hold it until they commit. Ids are then in the order
// of commits, and a position is an id. A writer waits for every other writer, and for any transaction that has written an
// event and stays open.
func synchronised() Way {
	return Way{
		Name:  "serialised",
		About: "writers take a lock before the id is drawn; virtual partitions, the last id as the position of each",
		Tables: `CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL, partition int NOT NULL DEFAULT 0,
				key text NOT NULL, payload json NOT NULL, created_at timestamptz NOT NULL DEFAULT now());
			CREATE INDEX ON outbox (topic, partition, id);
			CREATE TABLE outbox_offsets (topic text, partition int, last_id bigint NOT NULL DEFAULT 0, available_after timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (topic, partition))`,
		Subscribe: subscribe,
		Before:    `SELECT pg_advisory_xact_lock(` + lockKey + `)`,
		Left: `SELECT EXISTS (SELECT FROM outbox_offsets AS o WHERE EXISTS (
			SELECT FROM outbox AS e WHERE e.topic = o.topic AND e.partition = o.partition AND e.id > o.last_id))`,
		New: func(c Config) Worker {
			return &partitionWorker{
				Config: c,
				// $3 is the transaction, which only the other way uses.
				release: `UPDATE outbox_offsets SET last_id = $4, available_after = now() + $5::interval
					WHERE topic = $1 AND partition = $2 AND $3::text IS NOT NULL`,
				claim: `UPDATE outbox_offsets AS o SET available_after = now() + $1::interval
					FROM (SELECT topic, partition FROM outbox_offsets WHERE available_after <= now() ORDER BY available_after LIMIT 1 FOR UPDATE SKIP LOCKED) AS free
					WHERE o.topic = free.topic AND o.partition = free.partition RETURNING o.topic, o.partition, '0', o.last_id`,
				read: `SELECT id, topic, key, payload, $3::text FROM outbox
					WHERE topic = $1 AND partition = $2 AND id > $4 ORDER BY id LIMIT $5`,
			}
		},
	}
}
