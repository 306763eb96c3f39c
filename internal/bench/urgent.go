package bench

import (
	"context"
	"fmt"

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

// besideUrgent compares the drain with events of another destination at the end of the backlog, at the same priority and
// at a higher one.
func (d *drain) besideUrgent() contrast {
	c := d.contrast("alike", "urgent first")
	for i := range c.loads {
		c.loads[i].urgent, c.loads[i].priority = d.want.Urgent, i*urgentPriority
	}
	c.about = fmt.Sprintf("urgent: %s events of another destination at the end of the backlog, of the same priority and of a higher one\n", number(float64(d.want.Urgent)))
	c.verdict = func(r *DrainResult, c contrasted) string {
		r.UrgentPerSecond, r.UrgentRatio, r.UrgentBehindAlike, r.UrgentBehind = c.rate, c.ratio, &c.one.behind, &c.other.behind
		return fmt.Sprintf("of the backlog before the last urgent one: alike %s; urgent first %s\nurgent_ratio=%.3f %s; memory is %s",
			number(float64(c.one.behind)), number(float64(c.other.behind)), r.UrgentRatio, r.verdict(), c.one.rssHow)
	}
	return c
}

// registerUrgent adds the destination of urgent events to the relay.
func (d *drain) registerUrgent(relay *notifyd.Relay, l load, seen *sightings) error {
	if l.urgent == 0 {
		return nil
	}
	h := noting(delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return nil }), seen)
	return relay.Handle(urgentType, notifyd.Destination{Name: urgentName, Handler: h, Lane: delivery.Lane{Priority: l.priority}})
}
