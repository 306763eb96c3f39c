package testenv

// Fills returns statements by name that bring the migrated tables of a queue into states for which PostgreSQL may plan.
// The name describes the statistics. Autovacuum is off, because it would analyze the table while the test runs.
func Fills() map[string][]string {
	const (
		still1 = `ALTER TABLE outbox_events SET (autovacuum_enabled = off)`
		still2 = `ALTER TABLE outbox_deliveries SET (autovacuum_enabled = off)`
		events = `INSERT INTO outbox_events (event_type, payload, state, processed_at)
			SELECT 'a', '1', CASE WHEN i % 10 = 0 THEN 'fresh' WHEN i % 10 < 5 THEN 'deferred' ELSE 'done' END, now() FROM generate_series(1, 100000) i`
		deliveries = `INSERT INTO outbox_deliveries (event_id, destination, event_type, state, lease_owner, lease_token, lease_until)
			SELECT id, d, 'a', s, CASE s WHEN 'running' THEN id % 3 END, CASE s WHEN 'running' THEN id END, CASE s WHEN 'running' THEN now() END
			FROM outbox_events, unnest(ARRAY['x', 'y'], ARRAY['retry', 'running']) AS u(d, s) WHERE outbox_events.state = 'deferred'`
		analyse = `ANALYZE outbox_events, outbox_deliveries`
	)

	return map[string][]string{
		"empty":                {still1, still2},
		"never analysed":       {still1, still2, events, deliveries},
		"analysed":             {still1, still2, events, deliveries, analyse},
		"analysed while empty": {still1, still2, analyse, events, deliveries},
		"analysed while all is done": {
			still1, still2, events, deliveries,
			`UPDATE outbox_events SET state = 'done'`,
			`TRUNCATE outbox_deliveries`,
			`VACUUM ANALYZE outbox_events, outbox_deliveries`,
			`INSERT INTO outbox_events (event_type, payload) SELECT 'a', to_json(i) FROM generate_series(1, 20000) i`,
		},
	}
}
