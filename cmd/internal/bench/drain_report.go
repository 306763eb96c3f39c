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
		c := r.column(s.name)
		d.fill(c, m, s.load.events)
		copies := max(1, s.load.copies)
		c.set(ownCPUPerCopy, perEvent(m.cpu.own(), float64(copies*s.load.events)), 2)
		if s.load.urgent > 0 {
			c.set("delivered before the urgent ones", float64(m.behind), 0)
		}
		r.count(m.Faults)
		if len(took[i]) > 1 {
			r.note("%s, seconds of the rounds to the first delivery and from there: %s", s.name, seconds(took[i]))
		}

		floor, name := &bare, "SQL alone"
		if m.read != nil {
			floor, name = m.read, "read alone"
		}
		base := r.column(name)
		if len(base.Figures) == 0 {
			d.fill(base, *floor, s.load.events)
		}
		c.relate("ratio to the database alone", eventsPerSecond, base)
		if first := r.Columns[0]; c != first {
			c.relate("ratio to "+first.Name, eventsPerSecond, first)
			c.relate("  from the first delivery on", fromThenOn, first)
			c.relate("  CPU per delivery", ownCPUPerCopy, first)
		}
	}
	r.note("memory is %s", took[0][0].rssHow)
	return r
}

// explain describes the backlog for people.
func (d *drain) explain(r *Result) {
	fate, whose := "kept", "that belong to no aggregate"
	if d.want.Delete {
		fate = "deleted"
	}
	if keys := d.load(outboxsql.ModeStream, 0).keys; keys > 0 {
		whose = "of " + number(float64(keys)) + " aggregates"
	}
	r.say("%s events of %d B %s, then %s; %d claims of up to %d events in flight",
		number(float64(d.want.Events)), d.want.Payload, whose, fate, d.want.Workers, d.want.Batch)
	if d.want.HeldSnapshot {
		r.say("an older snapshot is held")
	}
	switch d.want.Foreign {
	case ForeignElsewhere:
		r.say("a transaction that writes elsewhere is open")
	case ForeignHere:
		r.say("a transaction is open that has written an event before them")
	}
	if d.want.BlockedKeys > 0 {
		r.say("blocked: %s more aggregates, of each an event that has failed once and is tried again in a day, and %d behind it; %s more in the backlog",
			number(float64(d.want.BlockedKeys)), blockedParked, number(float64(d.want.BlockedFresh)))
	}
	if d.want.Urgent > 0 {
		r.say("urgent: %s events of another destination at the end of the backlog", number(float64(d.want.Urgent)))
	}
	r.say("delivered to %s", d.place.note)
	r.say("inserted in one go and followed by a checkpoint, neither vacuumed nor analysed, autovacuum off for these tables")
}

// fill sets the figures of a drain. The database alone has no start time.
func (d *drain) fill(c *Column, m drained, events int) {
	n := float64(events)
	c.set(eventsPerSecond, n/m.took.Seconds(), 0)
	c.set("seconds", m.took.Seconds(), 2)
	if m.start != 0 {
		c.set("to the first delivery, s", m.start.Seconds(), 3)
		c.set(fromThenOn, ratio(n, (m.took-m.start).Seconds()), 0)
		c.set("dead rows afterwards", float64(m.dead), 0)
	}
	c.set("WAL, bytes/event", m.wal/n, 1)
	c.set("CPU of this process, us/event", perEvent(m.cpu.relay, n), 2)
	if d.DatabaseURL == "" {
		c.set("CPU of PostgreSQL, us/event", perEvent(m.cpu.postgres, n), 2)
	}
	if d.place != nil && d.place.pid != 0 && m.start != 0 {
		c.set("CPU of "+d.want.To+", us/event", perEvent(m.cpu.sink, n), 2)
	}
	c.set("peak memory, MiB", float64(m.rss)/(1<<20), 1)
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
