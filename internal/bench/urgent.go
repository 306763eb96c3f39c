package bench

import (
	"context"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/dispatch"
)

// urgentType is the type of the urgent events behind a backlog, and urgentName their
// destination.
const (
	urgentType = "urgent"
	urgentName = "urgent"
)

// sqlUrgent inserts the urgent events.
const sqlUrgent = `INSERT INTO $table (id, event_type, payload)
SELECT $before + $backlog + i, '` + urgentType + `', $payload::json FROM generate_series(1, $urgent::bigint) AS i`

// besideUrgent drains with events of another destination at the end of the backlog, at
// the same priority and at a higher one, in turns.
func (d *drain) besideUrgent(ctx context.Context, bare drained) (DrainResult, error) {
	names := [2]string{"alike", "urgent"}
	loads := [2]load{d.load(0), d.load(0)}
	for i := range loads {
		loads[i].urgent, loads[i].priority = d.want.Urgent, i*dispatch.MaxPriority
	}
	took, err := d.inTurns(ctx, names, loads)
	if err != nil {
		return DrainResult{}, err
	}
	alike, urgent := middle(took[0]), middle(took[1])
	r, with := d.result(alike, bare), d.result(urgent, bare)
	r.UrgentPerSecond, r.UrgentRatio = with.EventsPerSecond, round(ratio(with.EventsPerSecond, r.EventsPerSecond), 3)
	r.UrgentBehindAlike, r.UrgentBehind = &alike.behind, &urgent.behind
	r.sum(took)
	d.explain()
	d.printf("urgent: %s events of another destination at the end of the backlog, of the same priority and of a higher one\nmedians of %d rounds, in turns\n\n",
		number(float64(d.want.Urgent)), leastRounds)
	d.besideFloor([]string{"alike", "urgent first"}, bare, alike, urgent)
	d.printf("\nof the backlog before the last urgent one: alike %s; urgent first %s\n", number(float64(alike.behind)), number(float64(urgent.behind)))
	d.printf("urgent_ratio=%.3f %s; memory is %s\n", r.UrgentRatio, r.verdict(), alike.rssHow)
	return r, nil
}

// registerUrgent gives the relay the destination of urgent events.
func (d *drain) registerUrgent(relay *notifyd.Relay, l load, seen *sightings) error {
	if l.urgent == 0 {
		return nil
	}
	h := noting(notifyd.HandlerFunc(func(context.Context, *notifyd.Event) error { return nil }), seen)
	return relay.Handle(urgentName, urgentType, h, notifyd.WithPriority(l.priority))
}
