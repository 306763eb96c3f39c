package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Latency measures the time from the return of COMMIT to the call of the handler at a fixed rate. In the same run it
// measures the floor: a bare connection that listens, and a claim in SQL. A time is negative if the handler was called
// before COMMIT had returned to the writer.
type Latency struct {
	Events, Rate int
	Mode         Mode
	// HeldSnapshot and Foreign keep a transaction open, as in [Drain], every other second: half of the events are
	// measured with the transaction, and half without.
	HeldSnapshot bool
	Foreign      string
}

// Define implements [Experiment].
func (x *Latency) Define(cmd *cobra.Command) {
	cmd.Use = "latency"
	cmd.Short = "Time from a commit to the call of the handler"
	cmd.Long = `latency writes events at a fixed rate, each in a separate transaction, and measures
the time from the return of COMMIT to the call of the handler. In turns with
that it measures the floor: a bare connection that listens, and a claim of the
row in SQL. The exit code is 1 if an event was lost.`

	flags := cmd.Flags()
	flags.IntVar(&x.Events, "events", 2000, "`number` of events to measure")
	flags.IntVar(&x.Rate, "rate", 500, "transactions per `second`")
	flags.BoolVar(&x.HeldSnapshot, "held-snapshot", false, "measure as many events with an old snapshot held, in turns")
	addForeign(flags, &x.Foreign, "measure as many events, in turns, while a transaction is open that has written: elsewhere, or here, which is an event")
	addMode(flags, &x.Mode)
}

// Check implements [Experiment].
func (x *Latency) Check() error {
	return atLeast(1, option{"events", x.Events}, option{"rate", x.Rate})
}

const (
	// warmUp events of each side come first and are not measured.
	warmUp = 100
	// turnTime is the length of a turn of the relay or the floor.
	turnTime = 250 * time.Millisecond
	// disturbedTurnTime replaces turnTime if a transaction is opened in turns. It spans several of the intervals at
	// which the relay checks for open writers.
	disturbedTurnTime = time.Second
	// turnPause lets the last events of a turn arrive before the next one.
	turnPause = 20 * time.Millisecond
)

// mark has the times of one event, since the start.
type mark struct {
	due       time.Duration
	begun     time.Duration // a writer has taken it from the schedule
	commit    time.Duration // COMMIT was sent
	committed time.Duration // COMMIT has returned
	entered   atomic.Int64  // the handler was called, in nanoseconds; 0: not yet
}

// arrival returns when the handler was called; 0: not yet.
func (m *mark) arrival() time.Duration { return time.Duration(m.entered.Load()) }

// side is a relay or the floor, with a table.
type side struct {
	name    string
	mode    outboxsql.Mode
	notify  outboxsql.NotifyMode
	isFloor bool
	schema  string
	marks   sync.Map     // of its events, by id
	repeats atomic.Int64 // calls beyond one per event
}

// insert returns the statement of the writers, which returns the id.
func (s *side) insert() string { return insertSQL(s.schema) + " RETURNING id" }

// handled records the call of the handler.
func (s *side) handled(id int64, at time.Duration) {
	m, ok := s.marks.Load(id)
	if !ok || !m.(*mark).entered.CompareAndSwap(0, int64(at)) { //nolint:forcetypeassert // marks has nothing else
		s.repeats.Add(1)
	}
}

// write writes one event by a statement that returns its id. The handler may be called before the writer hears of its commit.
func (s *side) write(ctx context.Context, conn *pgx.Conn, start time.Time, m *mark, statement string, args ...any) error {
	m.begun = time.Since(start)
	var id int64
	var flight pgx.Batch
	flight.Queue("BEGIN")
	flight.Queue(statement, args...).QueryRow(func(row pgx.Row) error { return row.Scan(&id) })
	if err := conn.SendBatch(ctx, &flight).Close(); err != nil {
		return err
	}
	s.marks.Store(id, m)

	m.commit = time.Since(start)
	_, err := conn.Exec(ctx, "COMMIT")
	m.committed = time.Since(start)
	return err
}

// lap is a side, with or without a transaction that disturbs it.
type lap struct {
	*side
	isDisturbed bool
}

type latency struct {
	*Env
	want  *Latency
	start time.Time
	w     writers
	sides []*side // the relays, then the floor
}

// Run implements [Experiment]. The laps take turns, so that other load on the machine affects all of them equally.
func (x *Latency) Run(ctx context.Context, e *Env) (_ *Result, err error) {
	l := &latency{Env: e, want: x, start: time.Now()}
	for _, mode := range x.Mode.tables() {
		l.sides = append(l.sides, &side{name: string(mode), mode: mode, notify: outboxsql.NotifyAuto})
	}
	l.sides = append(l.sides, &side{name: "floor", mode: outboxsql.ModeQueue, notify: outboxsql.NotifyAlways, isFloor: true})
	var statements []string
	for _, s := range l.sides {
		s.schema, err = l.migrate(ctx, "latency_"+s.name, s.notify, s.mode)
		if err != nil {
			return nil, err
		}
		statements = append(statements, s.insert())
	}
	l.w, err = l.connectWriters(ctx, writersFor(x.Rate), statements...)
	if err != nil {
		return nil, err
	}
	defer l.w.close(ctx)
	for _, s := range l.sides {
		stop, err := l.attend(ctx, s)
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", s.name, err)
		}
		defer func() { err = errors.Join(err, stop()) }()
	}

	length := turnTime
	if x.isDisturbed() {
		length = disturbedTurnTime
	}
	events := max(1, int(int64(x.Rate)*int64(length)/int64(time.Second)))
	rounds := (x.Events + events - 1) / events
	laps := l.laps()
	for _, one := range laps {
		if _, err := l.turn(ctx, one, min(warmUp, x.Events)); err != nil {
			return nil, err
		}
	}
	left := make(map[lap]int) // events to measure
	for _, one := range laps {
		left[one] = x.Events
	}
	took, err := inTurns(ctx, rounds, laps, func(ctx context.Context, one lap) ([]mark, error) {
		n := min(events, left[one])
		left[one] -= n
		return l.turn(ctx, one, n)
	})
	if err != nil {
		return nil, err
	}
	for _, s := range l.sides {
		err := l.drained(ctx, s.schema, s.mode)
		if err != nil && ctx.Err() != nil {
			return nil, err // otherwise the rest counts as lost
		}
	}
	return l.report(laps, took), nil
}

// isDisturbed reports whether a transaction is opened and closed in turns.
func (x *Latency) isDisturbed() bool { return x.HeldSnapshot || x.Foreign != "" }

// laps returns each side, and each relay again with the transaction that disturbs it.
func (l *latency) laps() (all []lap) {
	for _, s := range l.sides {
		all = append(all, lap{side: s})
		if l.want.isDisturbed() && !s.isFloor {
			all = append(all, lap{s, true})
		}
	}
	return all
}

// attend starts the relay or the floor of a side.
func (l *latency) attend(ctx context.Context, s *side) (stop func() error, err error) {
	if s.isFloor {
		return l.startFloor(ctx, s)
	}
	relay, err := notifyd.New(l.Pool, notifyd.Config{Schema: s.schema, Logger: l.Log})
	if err != nil {
		return nil, err
	}
	err = relay.Handle("*", notifyd.Destination{Name: "all", Handler: delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		s.handled(e.ID, time.Since(l.start))
		return nil
	})})
	if err != nil {
		return nil, err
	}
	return StartRelay(ctx, relay)
}

// turn writes events at the rate, each in a separate transaction, and waits until the last ones have arrived.
func (l *latency) turn(ctx context.Context, one lap, events int) (marks []mark, err error) {
	if one.isDisturbed {
		foreign, err := l.transactions(ctx, l.disturbances()...)
		if err != nil {
			return nil, err
		}
		defer foreign.close(ctx)
	}

	marks = make([]mark, events)
	plan := schedule{time.Now(), events, steadily(l.want.Rate)}
	data := payload(payloadBytes)
	err = l.w.onSchedule(ctx, plan, func(ctx context.Context, i int, conn *pgx.Conn) error {
		marks[i].due = plan.due(i).Sub(l.start)
		return one.write(ctx, conn, l.start, &marks[i], one.insert(), data)
	})
	return marks, errors.Join(err, pause(ctx, turnPause))
}

// disturbances returns the statements that begin the disturbing transactions.
func (l *latency) disturbances() (all []string) {
	if l.want.HeldSnapshot {
		all = append(all, heldSnapshot)
	}
	switch l.want.Foreign {
	case foreignElsewhere:
		all = append(all, foreignWrite)
	case foreignHere:
		for _, s := range l.sides {
			if !s.isFloor {
				all = append(all, "BEGIN; INSERT INTO "+table(s.schema)+" (event_type, payload) VALUES ('"+eventType+"', '1')")
			}
		}
	}
	return all
}

// writersFor returns how many writers sustain a rate even if a flush is slow: at 2,000/s each commit may take 16 ms.
func writersFor(rate int) int { return min(max(rate/62, 8), 64) }

// The figures that are compared.
const (
	arrivalName = "commit returned -> handler"
	arrivalP50  = arrivalName + ", p50, ms"
	arrivalP99  = arrivalName + ", p99, ms"
)

// report fills a column for each lap.
func (l *latency) report(laps []lap, took [][][]mark) *Result {
	r := &Result{}
	r.Say("%d events at %d/s, in turns with as many of the floor; %d writers", l.want.Events, l.want.Rate, writersFor(l.want.Rate))
	if l.want.isDisturbed() {
		r.Say("disturbed: while transactions are open: %s", strings.Join(l.disturbances(), " | "))
	}
	for i, one := range laps {
		c := r.Column(one.name)
		if one.isDisturbed {
			undisturbed := c
			c = r.Column(one.name + ", disturbed")
			fillLap(c, took[i])
			c.relate("p50 / undisturbed", arrivalP50, undisturbed)
			c.relate("p99 / undisturbed", arrivalP99, undisturbed)
			continue
		}
		fillLap(c, took[i])
		faults := Faults{Lost: one.lost(), Duplicates: one.repeats.Load()}
		if one.isFloor {
			r.Note("floor %s", faults)
			continue
		}
		r.Count(faults)
	}
	floor := r.Column("floor")
	for _, c := range r.Columns {
		c.relate("p50 / floor", arrivalP50, floor)
	}
	return r
}

// lost counts the events that were committed and not delivered.
func (s *side) lost() (n int64) {
	s.marks.Range(func(_, m any) bool {
		if m.(*mark).entered.Load() == 0 { //nolint:forcetypeassert // marks has nothing else
			n++
		}
		return true
	})
	return n
}

// fillLap sets the times of a lap. The floor is a LISTEN and a claim, with a trigger that always notifies.
func fillLap(c *Column, rounds [][]mark) {
	for _, t := range []struct {
		name string
		of   func(*mark) time.Duration
	}{
		{arrivalName, func(m *mark) time.Duration { return m.arrival() - m.committed }},
		{"COMMIT sent -> handler", func(m *mark) time.Duration { return m.arrival() - m.commit }},
		{"COMMIT itself", func(m *mark) time.Duration { return m.committed - m.commit }},
		{"begun later than scheduled", func(m *mark) time.Duration { return m.begun - m.due }},
	} {
		var all []time.Duration
		for _, round := range rounds {
			for i := range round {
				if round[i].arrival() > 0 {
					all = append(all, t.of(&round[i]))
				}
			}
		}
		slices.Sort(all)
		c.percentiles(t.name, all, 0.5, 0.9, 0.99, 1)
	}
}
