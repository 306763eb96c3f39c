package store

import "testing"

// fills are what the tables may look like when a plan is made. Statistics are
// what the test says: autovacuum would make a never-analysed table an analysed
// one while the test runs.
func fills() map[string]func(d *db) {
	many := func(d *db) {
		d.Helper()
		d.exec(`INSERT INTO outbox_events (event_type, payload, state, processed_at)
			SELECT 'a', '1', CASE WHEN i % 10 = 0 THEN 'fresh' WHEN i % 10 < 5 THEN 'deferred' ELSE 'done' END, now() FROM generate_series(1, 100000) i`)
		d.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, lease_owner, lease_token, lease_until)
			SELECT id, d, 'a', s, CASE s WHEN 'running' THEN id % 3 END, CASE s WHEN 'running' THEN id END, CASE s WHEN 'running' THEN now() END
			FROM outbox_events, unnest(ARRAY['x', 'y'], ARRAY['retry', 'running']) AS u(d, s) WHERE outbox_events.state = 'deferred'`)
	}
	return map[string]func(d *db){
		"empty":          func(*db) {},
		"never analysed": many,
		"analysed": func(d *db) {
			d.Helper()
			many(d)
			d.exec(`ANALYZE outbox_events, outbox_deliveries`)
		},
		"analysed while empty": func(d *db) {
			d.Helper()
			d.exec(`ANALYZE outbox_events, outbox_deliveries`)
			many(d)
		},
		"analysed while all is done": func(d *db) {
			d.Helper()
			many(d)
			d.exec(`UPDATE outbox_events SET state = 'done'`)
			d.exec(`TRUNCATE outbox_deliveries`)
			d.exec(`VACUUM ANALYZE outbox_events, outbox_deliveries`)
			d.insert("a", 20_000)
		},
	}
}

func forEachFill(t *testing.T, f func(t *testing.T, d *db)) {
	t.Helper()
	for name, fill := range fills() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDB(t)
			d.exec(`ALTER TABLE outbox_events SET (autovacuum_enabled = off)`)
			d.exec(`ALTER TABLE outbox_deliveries SET (autovacuum_enabled = off)`)
			fill(d)
			f(t, d)
		})
	}
}
