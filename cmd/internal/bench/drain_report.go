package bench

import (
	"fmt"
	"strings"
	"time"

	outboxsql "github.com/notifyd/notifyd/sql"
)

// The figures that are compared.
const (
	eventsPerSecond = "events per second"
	fromThenOn      = "events per second from then on"
	ownCPUPerCopy   = "CPU of relay and server, us/delivery"
)

// report fills a column for each scenario, with the medians of its rounds, and a column for the database alone.
func (d *drain) report(all []scenario, took [][]drained, bare drained) *Result {
	r := &Result{}
	d.explain(r)
	for i, s := range all {
		m := middle(took[i])
		c := r.Column(s.name)
		d.fill(c, m, s.load.events)
		copies := max(1, s.load.copies)
		c.Set(ownCPUPerCopy, perEvent(m.own(), float64(copies*s.load.events)), 2)
		if s.load.urgent > 0 {
			c.Set("delivered before the urgent ones", float64(m.behind), 0)
		}
		r.Count(m.Faults)
		if len(took[i]) > 1 {
			r.Note("%s, seconds of the rounds to the first delivery and from there: %s", s.name, seconds(took[i]))
		}

		floor := &bare
		name := "SQL alone"
		if m.read != nil {
			floor = m.read
			name = "read alone"
		}
		base := r.Column(name)
		if len(base.Figures) == 0 {
			d.fill(base, *floor, s.load.events)
		}
		c.relate("ratio to the database alone", eventsPerSecond, base)
		first := r.Columns[0]
		if c != first {
			c.relate("ratio to "+first.Name, eventsPerSecond, first)
			c.relate("  from the first delivery on", fromThenOn, first)
			c.relate("  CPU per delivery", ownCPUPerCopy, first)
		}
	}
	r.Note(howMemory)
	return r
}

// explain describes the backlog for people.
func (d *drain) explain(r *Result) {
	fate := "kept"
	whose := "that belong to no aggregate"
	if d.want.Delete {
		fate = "deleted"
	}
	if keys := d.load(outboxsql.ModeStream, 0).keys; keys > 0 {
		whose = "of " + number(float64(keys)) + " aggregates"
	}
	r.Say("%s events of %d B %s, then %s; %d claims of up to %d events in flight",
		number(float64(d.want.Events)), d.want.Payload, whose, fate, d.want.Workers, d.want.Batch)
	if d.want.HeldSnapshot {
		r.Say("an older snapshot is held")
	}
	switch d.want.Foreign {
	case foreignElsewhere:
		r.Say("a transaction that writes elsewhere is open")
	case foreignHere:
		r.Say("a transaction is open that has written an event before them")
	}
	if d.want.BlockedKeys > 0 {
		r.Say("blocked: %s more aggregates, of each an event that has failed once and is tried again in a day, and %d behind it",
			number(float64(d.want.BlockedKeys)), blockedParked)
	}
	if d.want.Urgent > 0 {
		r.Say("urgent: %s events of another destination at the end of the backlog", number(float64(d.want.Urgent)))
	}
	r.Say("delivered to %s", d.place.note)
	r.Say("inserted in one go and followed by a checkpoint, neither vacuumed nor analysed, autovacuum off for these tables")
}

// fill sets the figures of a drain. The database alone has no start time.
func (d *drain) fill(c *Column, m drained, events int) {
	n := float64(events)
	c.Set(eventsPerSecond, n/m.took.Seconds(), 0)
	c.Set("seconds", m.took.Seconds(), 2)
	if m.start != 0 {
		c.Set("to the first delivery, s", m.start.Seconds(), 3)
		c.Set(fromThenOn, Ratio(n, (m.took-m.start).Seconds()), 0)
		c.Set("dead rows afterwards", float64(m.dead), 0)
	}
	c.Set("WAL, bytes/event", m.wal/n, 1)
	c.Set("CPU of this process, us/event", perEvent(m.relay, n), 2)
	if d.Private() {
		c.Set("CPU of PostgreSQL, us/event", perEvent(m.postgres, n), 2)
	}
	if d.place != nil && d.place.pid != 0 && m.start != 0 {
		c.Set("CPU of "+d.want.To+", us/event", perEvent(m.sink, n), 2)
	}
	c.Set("peak memory, MiB", float64(m.rss)/(1<<20), 1)
}

// perEvent returns microseconds per event.
func perEvent(d time.Duration, n float64) float64 { return float64(d) / float64(time.Microsecond) / n }

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
	m.postgres = span(func(one drained) time.Duration { return one.postgres })
	m.sink = span(func(one drained) time.Duration { return one.sink })
	m.relay = span(func(one drained) time.Duration { return one.relay })
	if m.read != nil {
		var reads []drained
		for _, one := range rounds {
			reads = append(reads, *one.read)
		}
		read := middle(reads)
		m.read = &read
	}
	m.Faults = Faults{}
	for _, one := range rounds {
		m.add(one.Faults)
	}
	return m
}

// seconds lists the durations of rounds.
func seconds(rounds []drained) string {
	var all []string
	for _, one := range rounds {
		all = append(all, fmt.Sprintf("%.2f+%.2f", one.start.Seconds(), (one.took-one.start).Seconds()))
	}
	return strings.Join(all, " ")
}
