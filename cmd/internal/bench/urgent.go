package bench

import (
	"context"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
)

// urgentType is the type of the urgent events at the end of a backlog, and urgentName their destination.
const (
	urgentType = "urgent"
	urgentName = "urgent"

	urgentPriority = 100
)

// sqlUrgent inserts the urgent events.
const sqlUrgent = `INSERT INTO $table (id, event_type, payload)
SELECT $before + $backlog + i, '` + urgentType + `', $payload::json FROM generate_series(1, $urgent::bigint) AS i`

// registerUrgent adds the destination of urgent events to the relay.
func (d *drain) registerUrgent(relay *notifyd.Relay, l load, seen *sightings) error {
	if l.urgent == 0 {
		return nil
	}
	h := noting(delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return nil }), seen)
	return relay.Handle(urgentType, notifyd.Destination{Name: urgentName, Handler: h, Lane: delivery.Lane{Priority: l.priority}})
}
