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

// buffersForBlocked is large enough for the tables with all blocked events. The default buffers are only slightly larger
// than the backlog: further rows would evict pages that are needed again.
const buffersForBlocked = "1GB"

// besideBlocked compares the drain without blocked aggregates and with them.
func (d *drain) besideBlocked() contrast {
	c := d.contrast("relay", "blocked")
	c.loads[1] = d.load(d.want.BlockedKeys)
	c.about = fmt.Sprintf("blocked: %s more aggregates, of each an event that has failed once and is tried again in a day, and %d behind it", number(float64(d.want.BlockedKeys)), blockedParked)
	if d.want.BlockedFresh > 0 {
		c.about += fmt.Sprintf(";\n%s more events of these in the backlog, to be put behind them", number(float64(d.want.BlockedFresh)))
	}
	c.about += "\n"
	c.verdict = func(r *DrainResult, c contrasted) string {
		beside := d.result(c.other, drained{})
		r.BlockedPerSecond, r.BlockedRatio, r.BlockedPeakRSSMiB = c.rate, c.ratio, beside.PeakRSSMiB
		r.BlockedStartSeconds, r.BlockedFlowingPerSecond = beside.StartSeconds, beside.FlowingPerSecond
		r.BlockedFlowingRatio = round(ratio(beside.FlowingPerSecond, r.FlowingPerSecond), 3)
		return c.rounds + fmt.Sprintf("blocked_ratio=%.3f (%.3f from the first delivery on) %s; memory is %s", r.BlockedRatio, r.BlockedFlowingRatio, r.verdict(), c.one.rssHow)
	}
	return c
}

// middle returns the medians of the rounds, separately for time, CPU time and memory, and the sum of the faults.
func middle(rounds []drained) drained {
	m := rounds[0]
	of := func(value func(drained) float64) float64 { return medianOf(rounds, value) }
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

// seconds lists the durations of rounds.
func seconds(rounds []drained) string {
	var all []string
	for _, one := range rounds {
		all = append(all, fmt.Sprintf("%.2f+%.2f", one.start.Seconds(), (one.took-one.start).Seconds()))
	}
	return strings.Join(all, " ") + " s"
}

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
