package bench

import (
	"context"
	"errors"
	"fmt"
)

// errUnblocked is returned when an event of a blocked aggregate was touched.
var errUnblocked = errors.New("events of blocked aggregates are not as they were")

// buffersForBlocked is large enough for the tables with all blocked events. The default buffers are only slightly larger
// than the backlog: further rows would evict pages that are needed again.
const buffersForBlocked = "1GB"

// left counts the unsettled events that should be settled. It returns an error unless the events of blocked aggregates
// are as expected: failed ones unchanged, all others waiting for them, and nothing else stored.
func (d *drain) left(ctx context.Context, schema string, l load) (int64, error) {
	left, err := d.unsettled(ctx, schema, l.mode)
	if err != nil {
		return 0, err
	}
	var deferred, waiting, parked, stored, rows int64
	err = d.pool.QueryRow(ctx, l.fill(schema, `SELECT
		(SELECT count(*) FROM $table WHERE state = 'deferred'),
		count(*) FILTER (WHERE d.state = 'retry' AND d.attempts = 1 AND d.available_at > now() AND d.event_id <= $blocked),
		count(*) FILTER (WHERE d.state = 'parked' AND d.attempts = 0 AND d.event_id > $blocked),
		count(*), (SELECT count(*) FROM $deliveries)
		FROM $table AS e JOIN $deliveries AS d ON d.event_id = e.id AND d.ordering_key = e.aggregate_type || '/' || e.aggregate_id
		WHERE e.aggregate_id LIKE 'blocked-%'`)).Scan(&deferred, &waiting, &parked, &stored, &rows)
	if err != nil {
		return 0, err
	}
	left += deferred // only a queue marks events
	held := int64(l.held() - l.ahead)
	behind := held - int64(l.blocked)
	if waiting != int64(l.blocked) || parked != behind || stored != held || rows != stored {
		return left, fmt.Errorf("%w: %d wait for another attempt, %d behind them, and %d rows are stored, where there should be %d, %d and %d",
			errUnblocked, waiting, parked, rows, l.blocked, behind, held)
	}
	return left, nil
}
