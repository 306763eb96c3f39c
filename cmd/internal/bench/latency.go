package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Latency measures the time from the return of COMMIT to the call of the handler at a fixed rate. In the same run it
// measures the floor: a bare connection that listens, and a claim in SQL. A time is negative if the handler was called
// before COMMIT had returned to the writer.
type Latency struct {
	// Events is how many events of the relay, and as many of the floor, are measured.
	Events int
	// Rate is how many transactions begin per second.
	Rate int
	// Mode of the table. With [ModeBoth] a queue and a stream take turns.
	Mode Mode
	// HeldSnapshot and Foreign keep a transaction open, as in [Drain], every other second: half of the events are
	// measured with the transaction, and half without.
	HeldSnapshot bool
	Foreign      string
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
	// payloadBytes is the default size of a payload.
	payloadBytes = 256
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
	*env
	want    *Latency
	tickets []ticket
	start   time.Time
	sides   []*side // the relays, then the floor
}

func (x *Latency) run(ctx context.Context, e *env) (*Result, error) {
	l := &latency{env: e, want: x}
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
		s.marks, s.seen = make([]mark, n[i]+spare+1), newSightings(n[i]+spare)
		s.seen.want = int64(n[i])
	}
}

// relays returns the sides without the floor, which is the last one.
func (l *latency) relays() []*side { return l.sides[:len(l.sides)-1] }

func (l *latency) floor() int { return len(l.sides) - 1 }

func (l *latency) measure(ctx context.Context) (err error) {
	for _, s := range l.sides {
		if s.schema, err = l.migrateTo(ctx, "latency_"+s.name, s.notify, s.mode); err != nil {
			return err
		}
	}
	conns, err := l.connectMany(ctx, writersFor(l.want.Rate), func(c *pgx.Conn) error { return l.prepareWriter(ctx, c) })
	if err != nil {
		return fmt.Errorf("connect the writers: %w", err)
	}
	defer closeAll(ctx, conns)

	l.start = time.Now()
	stopFloor, err := l.startFloor(ctx, l.sides[l.floor()])
	if err != nil {
		return fmt.Errorf("start the floor: %w", err)
	}
	defer func() { err = errors.Join(err, stopFloor()) }()
	for _, s := range l.relays() {
		relay, err := l.relay(s)
		if err != nil {
			return err
		}
		r := start(ctx, relay.Run)
		defer func() { err = errors.Join(err, r.stop()) }()
		if err := r.ready(ctx, relay.Ready()); err != nil {
			return err
		}
	}
	if err := l.write(ctx, conns); err != nil {
		return err
	}
	for _, s := range l.sides {
		err = errors.Join(err, s.seen.wait(ctx, nil))
	}
	return err
}

func (l *latency) relay(to *side) (*notifyd.Relay, error) {
	relay, err := notifyd.New(l.pool, notifyd.Config{Schema: to.schema, Logger: l.Log})
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
	var conns []*pgx.Conn
	defer func() { closeAll(ctx, conns) }()
	for _, t := range all {
		if err := sleepTimer(ctx, time.Until(l.start.Add(t.at))); err != nil {
			return err
		}
		closeAll(ctx, conns)
		conns = conns[:0]
		for _, statement := range l.disturbances() {
			if !t.on {
				break
			}
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
	case ForeignElsewhere:
		all = append(all, foreignWrite)
	case ForeignHere:
		for _, s := range l.relays() {
			all = append(all, "BEGIN; INSERT INTO "+table(s.schema)+" (event_type, payload) VALUES ('"+eventType+"', '1')")
		}
	}
	return all
}

// writersFor returns how many writers sustain a rate even if a flush is slow: at 2,000/s each commit may take 16 ms.
func writersFor(rate int) int { return min(max(rate/62, 8), 64) }

func (l *latency) prepareWriter(ctx context.Context, c *pgx.Conn) error {
	statements := map[string]string{"begin": "BEGIN", "commit": "COMMIT"}
	for i, s := range l.sides {
		statements["insert"+strconv.Itoa(i)] = insertSQL(s.schema) + " RETURNING id"
	}
	return prepare(ctx, c, statements)
}

// write writes every event at its time, each in a separate transaction.
func (l *latency) write(ctx context.Context, conns []*pgx.Conn) error {
	sleep, closeSleep, err := newSleeper()
	if err != nil {
		return err
	}
	due := make(chan int, len(l.tickets))
	offset := time.Since(l.start)
	for i := range l.tickets {
		l.tickets[i].at += offset // in the clock of the marks
	}
	tasks := []func(context.Context) error{func(ctx context.Context) error {
		defer func() { _ = closeSleep() }() // a timer has nothing to flush
		return pace(ctx, schedule{l.start, len(l.tickets), func(i int) time.Duration { return l.tickets[i].at }}, due, sleep)
	}}
	if all := turns(l.tickets); len(all) > 0 {
		tasks = append(tasks, func(ctx context.Context) error { return l.disturb(ctx, all) })
	}
	data := []byte(payload(payloadBytes))
	for _, conn := range conns {
		tasks = append(tasks, func(ctx context.Context) error {
			for i := range due {
				if err := l.writeOne(ctx, conn, i, data); err != nil {
					return fmt.Errorf("write an event: %w", err)
				}
			}
			return nil
		})
	}
	return together(ctx, tasks...)
}

func (l *latency) writeOne(ctx context.Context, conn *pgx.Conn, i int, data []byte) error {
	to := l.sides[l.tickets[i].side]
	begun := time.Since(l.start)
	var id int64
	err := fly(ctx, conn, statement{name: "begin"}, statement{
		name: "insert" + strconv.Itoa(l.tickets[i].side), params: [][]byte{data},
		row: func(values [][]byte) (err error) {
			id, err = strconv.ParseInt(string(values[0]), 10, 64)
			return err
		},
	})
	if err != nil {
		return err
	}
	if id < 1 || id >= int64(len(to.marks)) {
		return fmt.Errorf("unexpected id %d", id)
	}
	m := &to.marks[id]
	m.ticket, m.begun, m.commit = i, begun, time.Since(l.start)
	err = fly(ctx, conn, statement{name: "commit"})
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
			if t := &l.tickets[m.ticket]; t.measure && t.lap == which && m.committed > 0 && m.entered.Load() > 0 {
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
	r.say("%d events at %d/s, in turns with as many of the floor; %d writers", l.want.Events, l.want.Rate, writersFor(l.want.Rate))
	if l.want.disturbed() {
		r.say("disturbed: while transactions are open: %s", strings.Join(l.disturbances(), " | "))
	}
	for i, s := range l.sides {
		undisturbed := r.column(s.name)
		l.fill(undisturbed, lap{side: i})
		if i == l.floor() {
			continue
		}
		if l.want.disturbed() {
			disturbed := r.column(s.name + ", disturbed")
			l.fill(disturbed, lap{i, true})
			disturbed.relate("p50 / undisturbed", arrivalP50, undisturbed)
			disturbed.relate("p99 / undisturbed", arrivalP99, undisturbed)
		}
		r.count(Faults{Lost: s.seen.missing(), Duplicates: s.seen.duplicates.Load()})
	}
	floor := r.column(l.sides[l.floor()].name)
	for _, c := range r.Columns {
		c.relate("p50 / floor", arrivalP50, floor)
	}
	r.note("floor lost=%d", l.sides[l.floor()].seen.missing())
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
		c.times(t.name, l.times(t.of, of), 0.5, 0.9, 0.99, 1)
	}
}
