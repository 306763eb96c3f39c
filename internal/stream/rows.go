package stream

import "github.com/notifyd/notifyd/internal/deliveries"

// An event that could not be delivered is a row of outbox_deliveries. Only the owner of a shard handles the shard's
// rows, so reads take no lock, and a row has no flag that it is running.

// sqlDue reads the due rows of a destination, after a place in the order of their times and up to a time ($6). It reads
// $4 rows, whether or not they can be used: a column tells whether a row is the first of its queue. The index has this
// order.
func sqlDue(limit int, o *order) string {
	return `SELECT ` + deliveries.Columns(limit) + `, ` + o.first() + `
FROM (SELECT * FROM outbox_deliveries
	WHERE destination = $1` + o.mine() + ` AND state = 'retry' AND available_at <= least(now(), $6::timestamptz)
		AND (available_at, event_id) > ($2, $3)
	ORDER BY available_at, event_id LIMIT $4) AS d
` + deliveries.Event(limit)
}

// sqlNextDue returns the time of the server, and how long it is until the next row is due after a place in the order of
// their times; NULL if no row is due within $4 microseconds.
func sqlNextDue(o *order) string {
	return `SELECT now(), (SELECT (extract(epoch FROM available_at - clock_timestamp()) * 1000000)::bigint
	FROM outbox_deliveries WHERE destination = $1` + o.mine() + ` AND state = 'retry' AND (available_at, event_id) > ($2, $3)
		AND available_at <= now() + $4::bigint * interval '1 microsecond' ORDER BY available_at, event_id LIMIT 1)`
}

// sqlQueueHeads reads the first rows of queues, up to $3 of each. Of blocking dead letters it reads the first.
func sqlQueueHeads(limit int, o *order) string {
	live, _ := o.rows("*", "$1", "w.key", "$3")
	_, dead := o.rows("*", "$1", "w.key", "1")
	return `SELECT ` + deliveries.Columns(limit) + `, true
FROM unnest($2::text[]) WITH ORDINALITY AS w(key, n)
CROSS JOIN LATERAL (SELECT * FROM (` + live + ` UNION ALL (SELECT * FROM ` + dead + ` AS x WHERE $4)) AS u ORDER BY event_id LIMIT $3) AS d
` + deliveries.Event(limit) + `
ORDER BY w.n, d.event_id`
}

// sqlUnblocked returns the queues that do not wait: no row is in front, or the queue is empty.
func sqlUnblocked(o *order) string {
	live, dead := o.rows("event_id, state, replays", "$1", "w.key", "1")
	return `SELECT w.key FROM unnest($2::text[]) AS w(key)
LEFT JOIN LATERAL ` + live + ` AS l ON true
LEFT JOIN LATERAL (SELECT * FROM ` + dead + ` AS dead WHERE $3) AS x ON true
WHERE l.event_id IS NULL AND x.event_id IS NULL OR l.state = 'parked' AND (x.event_id IS NULL OR x.event_id > l.event_id OR ` + o.sqlPassesDead("l") + `)`
}
