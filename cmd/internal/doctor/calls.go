package doctor

import "context"

// endedCalls are events during whose calls processes ended.
type endedCalls struct {
	N           int
	Event       *int64
	Destination *string
	Calls       *int
}

// checkCalls looks for large events during whose calls the process of a relay ended, and which are not dead letters yet. One call may
// be running.
func checkCalls(ctx context.Context, e *exam) (string, []Finding, error) {
	c, err := row[endedCalls](ctx, e.conn, `SELECT count(*)::int, (array_agg(event_id ORDER BY event_id, destination))[1],
			(array_agg(destination ORDER BY event_id, destination))[1],
			(array_agg(calls - 1 ORDER BY event_id, destination))[1]
		FROM `+e.table("outbox_calls")+` AS c WHERE calls > 1 AND NOT EXISTS (SELECT FROM `+e.table("outbox_deliveries")+` AS d
			WHERE d.event_id = c.event_id AND d.destination = c.destination AND d.state = 'dead')`)

	if err != nil || c.N == 0 {
		return "No process has ended repeatedly during a call with a large event.", nil, err
	}

	return "", []Finding{found(Warning, "raise the memory limit of the relay, or lower relay.max_event_bytes",
		"Large events during whose calls a process ended: %d, the first one is %d for %q, %d times in turn. It "+
			"becomes a dead letter after max_attempts.", c.N, *c.Event, *c.Destination, *c.Calls)}, nil
}
