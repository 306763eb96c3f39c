package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
	cmd.Example = "  bench latency\n  bench latency --rate 2000 --events 8000 --json"

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
	// blockTime is the length of a turn of the relay or the floor.
	blockTime = 250 * time.Millisecond
	// disturbedBlockTime replaces blockTime if a transaction is opened in turns. It spans several of the intervals at
	// which the relay checks for open writers.
	disturbedBlockTime = time.Second
	// blockPause lets the last events of a block arrive before the next one.
	blockPause = 20 * time.Millisecond
)

// lap is one turn: a side, with or without a transaction that disturbs it.
type lap struct {
	side      int
	disturbed bool
}

// ticket is one event of the schedule.
type ticket struct {
	lap
	at      time.Duration
	measure bool
}

// blocks returns the schedule: all laps in turns, so that other load on the machine affects all of them equally.
func blocks(events, rate int, length time.Duration, laps []lap) []ticket {
	warm := min(warmUp, events)
	size := max(1, int(int64(rate)*int64(length)/int64(time.Second)))
	at := steadily(rate)
	tickets := make([]ticket, 0, len(laps)*(events+warm))
	var pauses time.Duration
	for from := 0; from < events+warm; {
		n := min(size, events+warm-from)
		if from < warm {
			n = min(n, warm-from)
		}
		for _, l := range laps {
			for range n {
				tickets = append(tickets, ticket{l, at(len(tickets)) + pauses, from >= warm})
			}
			pauses += blockPause
		}
		from += n
	}
	return tickets
}

// turn is a time at which the disturbance begins or ends, in the middle of a pause.
type turn struct {
	at time.Duration
	on bool
}

// turns returns the turns of a schedule.
func turns(tickets []ticket) (all []turn) {
	on := false
	for _, t := range tickets {
		if t.disturbed != on {
			on = t.disturbed
			all = append(all, turn{t.at - blockPause/2, on})
		}
	}
	return all
}

// mark has the times of one event, since the start.
type mark struct {
	ticket    int
	begun     time.Duration // the writer has taken it from the schedule
	commit    time.Duration // COMMIT was sent
	committed time.Duration // COMMIT has returned; 0: no event has this id
	entered   atomic.Int64  // the handler was called, in nanoseconds; 0: not yet
}

// side is a relay or the floor: a table, and the marks of its events.
type side struct {
	name   string
	mode   outboxsql.Mode
	notify outboxsql.NotifyMode
	schema string
	marks  []mark // by id
	seen   *sightings
}

// handled records the call of the handler.
func (s *side) handled(id int64, at time.Duration) {
	if id > 0 && id < int64(len(s.marks)) {
		s.marks[id].entered.CompareAndSwap(0, int64(at))
	}
	s.seen.note(id)
}

type latency struct {
	*Env
	want    *Latency
	tickets []ticket
	start   time.Time
	sides   []*side // the relays, then the floor
}

// Run implements [Experiment].
func (x *Latency) Run(ctx context.Context, e *Env) (*Result, error) {
	l := &latency{Env: e, want: x}
	l.plan()
	if err := l.measure(ctx); err != nil {
		return nil, err
	}
	return l.report(), nil
}

// disturbed reports whether a transaction is opened and closed in turns.
func (x *Latency) disturbed() bool { return x.HeldSnapshot || x.Foreign != "" }

// plan makes the sides and the schedule.
func (l *latency) plan() {
	for _, mode := range l.want.Mode.tables() {
		l.sides = append(l.sides, &side{name: string(mode), mode: mode, notify: outboxsql.NotifyAuto})
	}
	l.sides = append(l.sides, &side{name: "floor", mode: outboxsql.ModeQueue, notify: outboxsql.NotifyAlways})
	var laps []lap
	for i := range l.sides {
		laps = append(laps, lap{side: i})
	}
	length := blockTime
	if l.want.disturbed() {
		length = disturbedBlockTime
		for i := range l.relays() {
			laps = append(laps, lap{side: i, disturbed: true})
		}
	}
	l.tickets = blocks(l.want.Events, l.want.Rate, length, laps)
	spare := len(turns(l.tickets)) // ids of events that are rolled back
	n := make([]int, len(l.sides))
	for i := range l.tickets {
		n[l.tickets[i].side]++
	}
	for i, s := range l.sides {
		s.marks = make([]mark, n[i]+spare+1)
		s.seen = newSightings(n[i] + spare)
		s.seen.want = int64(n[i])
	}
}

// relays returns the sides without the floor, which is the last one.
func (l *latency) relays() []*side { return l.sides[:len(l.sides)-1] }

func (l *latency) floor() int { return len(l.sides) - 1 }

func (l *latency) measure(ctx context.Context) (err error) {
	var statements []string
	for _, s := range l.sides {
		s.schema, err = l.migrate(ctx, "latency_"+s.name, s.notify, s.mode)
		if err != nil {
			return err
		}
		statements = append(statements, s.insert())
	}
	w, err := l.connectWriters(ctx, writersFor(l.want.Rate), statements...)
	if err != nil {
		return err
	}
	defer w.close(ctx)

	l.start = time.Now()
	floor, err := l.startFloor(ctx, l.sides[l.floor()])
	if err != nil {
		return fmt.Errorf("start the floor: %w", err)
	}
	defer func() { err = errors.Join(err, floor.stop()) }()
	for _, s := range l.relays() {
		relay, err := l.relay(s)
		if err != nil {
			return err
		}
		r, err := startRelay(ctx, relay)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.stop()) }()
	}

	if err := l.write(ctx, w); err != nil {
		return err
	}
	for _, s := range l.sides {
		err = errors.Join(err, s.seen.wait(ctx, nil))
	}
	return err
}

// insert returns the statement of the writers, which returns the id.
func (s *side) insert() string { return insertSQL(s.schema) + " RETURNING id" }

func (l *latency) relay(to *side) (*notifyd.Relay, error) {
	relay, err := notifyd.New(l.Pool, notifyd.Config{Schema: to.schema, Logger: l.Log})
	if err != nil {
		return nil, err
	}
	return relay, relay.Handle("*", notifyd.Destination{Name: "all", Handler: delivery.HandlerFunc(func(_ context.Context, e *delivery.Event) error {
		to.handled(e.ID, time.Since(l.start))
		return nil
	})})
}

// disturb opens and closes the transaction at its turns.
func (l *latency) disturb(ctx context.Context, all []turn) (err error) {
	var conns writers
	defer func() { conns.close(ctx) }()
	for _, t := range all {
		if err := pause(ctx, time.Until(l.start.Add(t.at))); err != nil {
			return err
		}
		conns.close(ctx)
		conns = conns[:0]
		if !t.on {
			continue
		}
		for _, statement := range l.disturbances() {
			conn, err := l.transaction(ctx, statement)
			if err != nil {
				return err
			}
			conns = append(conns, conn)
		}
	}
	return nil
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
		for _, s := range l.relays() {
			all = append(all, "BEGIN; INSERT INTO "+table(s.schema)+" (event_type, payload) VALUES ('"+eventType+"', '1')")
		}
	}
	return all
}

// writersFor returns how many writers sustain a rate even if a flush is slow: at 2,000/s each commit may take 16 ms.
func writersFor(rate int) int { return min(max(rate/62, 8), 64) }

// write writes every event at its time, each in a separate transaction.
func (l *latency) write(ctx context.Context, w writers) error {
	offset := time.Since(l.start)
	for i := range l.tickets {
		l.tickets[i].at += offset // in the clock of the marks
	}
	plan := schedule{l.start, len(l.tickets), func(i int) time.Duration { return l.tickets[i].at }}
	data := payload(payloadBytes)
	return Together(ctx,
		func(ctx context.Context) error { return l.disturb(ctx, turns(l.tickets)) },
		func(ctx context.Context) error {
			return w.onSchedule(ctx, plan, func(ctx context.Context, i int, conn *pgx.Conn) error { return l.writeOne(ctx, conn, i, data) })
		})
}

func (l *latency) writeOne(ctx context.Context, conn *pgx.Conn, i int, data string) error {
	to := l.sides[l.tickets[i].side]
	begun := time.Since(l.start)
	var id int64
	var flight pgx.Batch
	flight.Queue("BEGIN")
	flight.Queue(to.insert(), data).QueryRow(func(row pgx.Row) error { return row.Scan(&id) })
	if err := conn.SendBatch(ctx, &flight).Close(); err != nil {
		return err
	}
	if id < 1 || id >= int64(len(to.marks)) {
		return fmt.Errorf("unexpected id %d", id)
	}

	m := &to.marks[id]
	m.ticket = i
	m.begun = begun
	m.commit = time.Since(l.start)
	_, err := conn.Exec(ctx, "COMMIT")
	m.committed = time.Since(l.start)
	return err
}

// times returns the sorted results of the function of, for the measured events of the laps.
func (l *latency) times(of func(*mark) time.Duration, laps ...lap) []time.Duration {
	var all []time.Duration
	for _, which := range laps {
		s := l.sides[which.side]
		for id := 1; id < len(s.marks); id++ {
			m := &s.marks[id]
			t := &l.tickets[m.ticket]
			isMeasured := t.measure && t.lap == which
			if isMeasured && m.committed > 0 && m.entered.Load() > 0 {
				all = append(all, of(m))
			}
		}
	}
	slices.Sort(all)
	return all
}

// arrival returns the measured time: from the commit to the call of the handler.
func arrival(m *mark) time.Duration { return time.Duration(m.entered.Load()) - m.committed }

// report fills a column for each side, with and without the transaction that disturbs it.
func (l *latency) report() *Result {
	r := &Result{}
	r.Say("%d events at %d/s, in turns with as many of the floor; %d writers", l.want.Events, l.want.Rate, writersFor(l.want.Rate))
	if l.want.disturbed() {
		r.Say("disturbed: while transactions are open: %s", strings.Join(l.disturbances(), " | "))
	}
	for i, s := range l.sides {
		undisturbed := r.Column(s.name)
		l.fill(undisturbed, lap{side: i})
		if i == l.floor() {
			continue
		}
		if l.want.disturbed() {
			disturbed := r.Column(s.name + ", disturbed")
			l.fill(disturbed, lap{i, true})
			disturbed.relate("p50 / undisturbed", arrivalP50, undisturbed)
			disturbed.relate("p99 / undisturbed", arrivalP99, undisturbed)
		}
		r.Count(Faults{Lost: s.seen.missing(), Duplicates: s.seen.duplicates.Load()})
	}
	floor := r.Column(l.sides[l.floor()].name)
	for _, c := range r.Columns {
		c.relate("p50 / floor", arrivalP50, floor)
	}
	r.Note("floor lost=%d", l.sides[l.floor()].seen.missing())
	return r
}

// The figures that are compared.
const (
	arrivalName = "commit returned -> handler"
	arrivalP50  = arrivalName + ", p50, ms"
	arrivalP99  = arrivalName + ", p99, ms"
)

// fill sets the times of a lap. The floor is a LISTEN and a claim, with a trigger that always notifies.
func (l *latency) fill(c *Column, of lap) {
	sent := func(m *mark) time.Duration { return time.Duration(m.entered.Load()) - m.commit }
	took := func(m *mark) time.Duration { return m.committed - m.commit }
	late := func(m *mark) time.Duration { return m.begun - l.tickets[m.ticket].at }
	for _, t := range []struct {
		name string
		of   func(*mark) time.Duration
	}{
		{arrivalName, arrival}, {"COMMIT sent -> handler", sent}, {"COMMIT itself", took}, {"begun later than scheduled", late},
	} {
		c.percentiles(t.name, l.times(t.of, of), 0.5, 0.9, 0.99, 1)
	}
}
