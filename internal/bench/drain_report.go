package bench

import (
	"fmt"
	"time"

	outboxsql "github.com/notifyd/notifyd/sql"
)

// flowing returns the rate of n events after the first delivery, per second.
func (r drained) flowing(n float64) float64 { return ratio(n, (r.took - r.start).Seconds()) }

// result compares a drain by the relay with one by SQL alone. A stream has its own comparison: the read alone.
func (d *drain) result(relay, bare drained) DrainResult {
	if relay.read != nil {
		bare = *relay.read
	}
	n := float64(d.want.Events)
	r := DrainResult{
		EventsPerSecond: round(n/relay.took.Seconds(), 0), SQLPerSecond: round(n/bare.took.Seconds(), 0),
		StartSeconds: round(relay.start.Seconds(), 3), FlowingPerSecond: round(relay.flowing(n), 0),
		Lost: relay.lost, Duplicates: relay.duplicates,
		WALBytesPerEvent: round(relay.wal/n, 1), PeakRSSMiB: mebibytes(relay.rss), DeadRows: relay.dead,
		PostgresCPU: round(perEvent(relay.cpu.postgres, n), 2), SinkCPU: round(perEvent(relay.cpu.sink, n), 2),
		RelayCPU: round(perEvent(relay.cpu.relay, n), 2),
	}
	if (d.want.Keys > 0 || d.inOneOrder()) && d.mode == outboxsql.ModeStream {
		r.OutOfOrder = &relay.disordered
	}
	r.Ratio = round(ratio(r.EventsPerSecond, r.SQLPerSecond), 3)
	return r
}

// explain describes the backlog for people.
func (d *drain) explain() {
	fate, held, whose := "kept", "", "that belong to no aggregate"
	if d.want.Delete {
		fate = "deleted"
	}
	if d.want.HeldSnapshot {
		held = ", while an older snapshot is held"
	}
	switch d.want.Foreign {
	case ForeignElsewhere:
		held += ", while a transaction that writes elsewhere is open"
	case ForeignHere:
		held += ", while a transaction is open that has written an event before them"
	}
	if d.want.Keys > 0 {
		whose = "of " + number(float64(d.want.Keys)) + " aggregates"
	}
	d.printf("%s events of %d B %s, then %s%s; %d claims of up to %d events in flight\n",
		number(float64(d.want.Events)), d.want.Payload, whose, fate, held, d.want.Workers, d.want.Batch)
	d.printf("delivered to %s\n", d.place.note)
	d.printf("inserted in one go and followed by a checkpoint, neither vacuumed nor analysed, autovacuum off for these tables\n\n")
}

func (d *drain) report(r DrainResult, relay, bare drained) {
	d.explain()
	d.besideFloor([]string{"relay"}, bare, relay)
	d.printf("\n%s; memory is %s\n", r.verdict(), relay.rssHow)
}

// besideFloor writes the figures of drains, and the figures of the database alone for the first.
func (d *drain) besideFloor(names []string, bare drained, all ...drained) {
	if read := all[0].read; read != nil {
		d.columns(append(names, "read alone"), append(all, *read)...)
		return
	}
	d.columns(append(names, "SQL alone"), append(all, bare)...)
}

// columns writes the figures of drains, a column for each.
func (d *drain) columns(names []string, all ...drained) {
	s := newSheet(d.Out, names, all)
	// SQL alone has no start time.
	started := func(name string, cell func(drained) string) {
		s.figure(name, func(one drained) string {
			if one.start == 0 {
				return ""
			}
			return cell(one)
		})
	}
	n := float64(d.want.Events)
	s.counts("events per second", func(one drained) float64 { return n / one.took.Seconds() })
	s.fixed("seconds", 2, func(one drained) float64 { return one.took.Seconds() })
	started("to the first delivery", func(one drained) string { return fmt.Sprintf("%.2f", one.start.Seconds()) })
	started("events per second from then on", func(one drained) string { return number(one.flowing(n)) })
	s.fixed("WAL bytes per event", 1, func(one drained) float64 { return one.wal / n })
	s.fixed("CPU of this process, us/event", 2, func(one drained) float64 { return perEvent(one.cpu.relay, n) })
	if d.DatabaseURL == "" {
		s.fixed("CPU of PostgreSQL, us/event", 2, func(one drained) float64 { return perEvent(one.cpu.postgres, n) })
	}
	if d.place.pid != 0 {
		started("CPU of "+d.want.To+", us/event", func(one drained) string { return fmt.Sprintf("%.2f", perEvent(one.cpu.sink, n)) })
	}
	started("dead rows afterwards", func(one drained) string { return number(float64(one.dead)) })
	s.fixed("peak memory, MiB", 1, func(one drained) float64 { return mebibytes(one.rss) })
}

func perEvent(d time.Duration, n float64) float64 { return float64(d) / float64(time.Microsecond) / n }

func mebibytes(n int64) float64 { return round(float64(n)/(1<<20), 1) }
