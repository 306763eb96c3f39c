package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// errUnblocked is returned when an event of a blocked aggregate was touched.
var errUnblocked = errors.New("events of blocked aggregates are not as they were")

// buffersForBlocked hold the tables with all blocked events. The default buffers hold the
// backlog and little more: further rows would evict pages that are needed again.
const buffersForBlocked = "1GB"

// besideBlocked drains without and with blocked aggregates, in turns, each
// round beginning with the other one.
func (d *drain) besideBlocked(ctx context.Context, bare drained) (DrainResult, error) {
	names := [2]string{"relay", "blocked"}
	loads := [2]load{d.load(0), d.load(d.want.BlockedKeys)}
	took, err := d.inTurns(ctx, names, loads)
	if err != nil {
		return DrainResult{}, err
	}
	free, blocked := middle(took[0]), middle(took[1])
	r, beside := d.result(free, bare), d.result(blocked, bare)
	r.BlockedPerSecond, r.BlockedStartSeconds, r.BlockedFlowingPerSecond = beside.EventsPerSecond, beside.StartSeconds, beside.FlowingPerSecond
	r.BlockedPeakRSSMiB = beside.PeakRSSMiB
	r.BlockedRatio = round(ratio(beside.EventsPerSecond, r.EventsPerSecond), 3)
	r.BlockedFlowingRatio = round(ratio(beside.FlowingPerSecond, r.FlowingPerSecond), 3)
	r.sum(took)
	d.reportBlocked(r, took, bare)
	return r, nil
}

// inTurns drains two loads by the relay, each round beginning with the other one.
func (d *drain) inTurns(ctx context.Context, names [2]string, loads [2]load) (took [2][]drained, err error) {
	for i := range leastRounds {
		for j := range names {
			which := (i + j) % len(names)
			one, err := d.measure(ctx, names[which], loads[which], d.relay)
			if err != nil {
				return took, fmt.Errorf("drain by the relay, %s: %w", names[which], err)
			}
			took[which] = append(took[which], one)
		}
	}
	return took, nil
}

// middle has the medians of the rounds, separately of time, CPU time and memory, and
// the sum of the faults.
func middle(rounds []drained) drained {
	m := rounds[0]
	of := func(value func(drained) float64) float64 {
		var all []float64
		for _, one := range rounds {
			all = append(all, value(one))
		}
		return median(all)
	}
	span := func(value func(drained) time.Duration) time.Duration {
		return time.Duration(of(func(one drained) float64 { return float64(value(one)) }))
	}
	m.start = span(func(one drained) time.Duration { return one.start })
	m.took = m.start + span(func(one drained) time.Duration { return one.took - one.start })
	m.behind = int64(of(func(one drained) float64 { return float64(one.behind) }))
	m.wal = of(func(one drained) float64 { return one.wal })
	m.rss = int64(of(func(one drained) float64 { return float64(one.rss) }))
	m.dead = int64(of(func(one drained) float64 { return float64(one.dead) }))
	m.cpu = split{
		postgres: span(func(one drained) time.Duration { return one.cpu.postgres }),
		sink:     span(func(one drained) time.Duration { return one.cpu.sink }),
		relay:    span(func(one drained) time.Duration { return one.cpu.relay }),
	}
	if m.read != nil {
		var reads []drained
		for _, one := range rounds {
			reads = append(reads, *one.read)
		}
		read := middle(reads)
		m.read = &read
	}
	m.lost, m.duplicates, m.disordered = 0, 0, 0
	for _, one := range rounds {
		m.lost, m.duplicates, m.disordered = m.lost+one.lost, m.duplicates+one.duplicates, m.disordered+one.disordered
	}
	return m
}

func (d *drain) reportBlocked(r DrainResult, took [2][]drained, bare drained) {
	d.explain()
	d.printf("blocked: %s more aggregates, of each an event that has failed once and is tried again in a day, and %d behind it", number(float64(d.want.BlockedKeys)), blockedParked)
	if d.want.BlockedFresh > 0 {
		d.printf(";\n%s more events of these in the backlog, to be put behind them", number(float64(d.want.BlockedFresh)))
	}
	d.printf("\nmedians of %d rounds, in turns\n\n", leastRounds)
	free, blocked := middle(took[0]), middle(took[1])
	d.besideFloor([]string{"relay", "blocked"}, bare, free, blocked)
	d.printf("\nrounds, to the first delivery and from there: relay %s; blocked %s\n", seconds(took[0]), seconds(took[1]))
	d.printf("blocked_ratio=%.3f (%.3f from the first delivery on) %s; memory is %s\n",
		r.BlockedRatio, r.BlockedFlowingRatio, r.verdict(), free.rssHow)
}

// seconds lists how long rounds took.
func seconds(rounds []drained) string {
	var all []string
	for _, one := range rounds {
		all = append(all, fmt.Sprintf("%.2f+%.2f", one.start.Seconds(), (one.took-one.start).Seconds()))
	}
	return strings.Join(all, " ") + " s"
}

// left counts the events that should be settled and are not. It returns an error
// unless the events of blocked aggregates are as expected: failed ones unchanged, all
// others behind them, and nothing else stored.
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
