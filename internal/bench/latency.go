package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// LatencyOptions of [Latency].
type LatencyOptions struct {
	Options
	// Events is how many are measured, of the relay and of the floor each.
	Events int
	// Rate is how many transactions begin per second.
	Rate int
	// Mode is what the table is. With [ModeBoth] the result is that of the queue, and has
	// that of the stream in it.
	Mode Mode
}

// LatencyResult is what came of it, in milliseconds from the return of COMMIT
// to the call of the handler. An event can be faster than its writer's answer:
// such a time is negative.
type LatencyResult struct {
	P50      float64 `json:"p50_ms"`
	P90      float64 `json:"p90_ms"`
	P99      float64 `json:"p99_ms"`
	Max      float64 `json:"max_ms"`
	FloorP50 float64 `json:"floor_p50_ms"`
	FloorP99 float64 `json:"floor_p99_ms"`
	Lost     int64   `json:"lost"`
}

// OK reports whether all went as it should.
func (r LatencyResult) OK() bool { return r.Lost == 0 }

const (
	// warmUp events of each side come first and are not measured.
	warmUp = 100
	// blockTime is how long the relay and the floor take turns for.
	blockTime = 250 * time.Millisecond
	// blockPause lets the last events of a block arrive before the next one.
	blockPause = 20 * time.Millisecond
	// payloadBytes of an event where nothing else is asked for.
	payloadBytes = 256
)

// The two sides of the comparison.
const (
	relaySide = iota
	floorSide
	sides
)

// ticket is one event of the schedule.
type ticket struct {
	at      time.Duration
	side    int
	measure bool
}

// blocks is the schedule: both sides in turns, so that whatever else the
// machine does meets both.
func blocks(events, rate int) []ticket {
	warm := min(warmUp, events)
	size := max(1, int(int64(rate)*int64(blockTime)/int64(time.Second)))
	at := steadily(rate)
	tickets := make([]ticket, 0, sides*(events+warm))
	var pauses time.Duration
	for from := 0; from < events+warm; {
		n := min(size, events+warm-from)
		if from < warm {
			n = min(n, warm-from)
		}
		for side := range sides {
			for range n {
				tickets = append(tickets, ticket{at(len(tickets)) + pauses, side, from >= warm})
			}
			pauses += blockPause
		}
		from += n
	}
	return tickets
}

// mark is the life of one event, in nanoseconds since the start.
type mark struct {
	ticket    int
	begun     time.Duration // the writer has picked it up
	commit    time.Duration // COMMIT was sent
	committed time.Duration // COMMIT has returned; 0: there is no such event
	entered   atomic.Int64  // the handler was called; 0: not yet
}

// side is the relay or the floor: a table, and what became of its events.
type side struct {
	schema string
	marks  []mark // by id
	seen   *sightings
}

// handled notes that the handler was called.
func (s *side) handled(id int64, at time.Duration) {
	if id > 0 && id < int64(len(s.marks)) {
		s.marks[id].entered.CompareAndSwap(0, int64(at))
	}
	s.seen.note(id)
}

type latency struct {
	*env
	want    LatencyOptions
	tickets []ticket
	start   time.Time
	sides   [sides]*side
}

// Latency measures the time from a commit to the call of the handler at a
// fixed rate, and in the same run the floor: what a bare connection that
// listens and a claim in SQL take for the same.
func Latency(ctx context.Context, o LatencyOptions) (LatencyResult, error) {
	if o.Events < 1 || o.Rate < 1 {
		return LatencyResult{}, fmt.Errorf("events and rate must be at least 1, not %d and %d", o.Events, o.Rate)
	}
	var result LatencyResult
	err := within(ctx, o.Options, func(ctx context.Context, e *env) error {
		l := &latency{env: e, want: o, tickets: blocks(o.Events, o.Rate)}
		if err := l.run(ctx); err != nil {
			return err
		}
		result = l.report()
		return nil
	})
	return result, err
}

func (l *latency) run(ctx context.Context) (err error) {
	for i, bell := range []outboxsql.Bell{outboxsql.BellAuto, outboxsql.BellAlways} {
		schema, err := l.migrate(ctx, []string{"relay", "floor"}[i], bell)
		if err != nil {
			return err
		}
		n := len(l.tickets) / sides
		l.sides[i] = &side{schema: schema, marks: make([]mark, n+1), seen: newSightings(n)}
	}
	conns, err := l.connectMany(ctx, writersFor(l.want.Rate), func(c *pgx.Conn) error { return l.prepareWriter(ctx, c) })
	if err != nil {
		return fmt.Errorf("connect the writers: %w", err)
	}
	defer closeAll(ctx, conns)

	l.start = time.Now()
	stopFloor, err := l.startFloor(ctx, l.sides[floorSide])
	if err != nil {
		return fmt.Errorf("start the floor: %w", err)
	}
	defer func() { err = errors.Join(err, stopFloor()) }()
	relay, err := l.relay()
	if err != nil {
		return err
	}
	r := start(ctx, relay.Run)
	defer func() { err = errors.Join(err, r.stop()) }()
	if err := r.ready(ctx, relay.Ready()); err != nil {
		return err
	}
	stop := l.progress("delivering", int64(len(l.tickets)), func() int64 {
		return l.sides[relaySide].seen.distinct.Load() + l.sides[floorSide].seen.distinct.Load()
	})
	defer stop()
	if err := l.write(ctx, conns); err != nil {
		return err
	}
	return l.settle(ctx)
}

func (l *latency) relay() (*notifyd.Relay, error) {
	to := l.sides[relaySide]
	relay, err := notifyd.New(l.pool, notifyd.WithSchema(to.schema), notifyd.WithLogger(l.Log))
	if err != nil {
		return nil, err
	}
	return relay, relay.Handle("*", notifyd.HandlerFunc(func(_ context.Context, e *notifyd.Event) error {
		to.handled(e.ID, time.Since(l.start))
		return nil
	}))
}

// writersFor is how many writers a rate takes, so that none of them has to be
// waited for while a flush is slow: at 2,000/s each may take 16 ms.
func writersFor(rate int) int { return min(max(rate/62, 8), 64) }

func (l *latency) prepareWriter(ctx context.Context, c *pgx.Conn) error {
	return prepare(ctx, c, map[string]string{
		"begin": "BEGIN", "commit": "COMMIT",
		"insert0": insertSQL(l.sides[relaySide].schema) + " RETURNING id",
		"insert1": insertSQL(l.sides[floorSide].schema) + " RETURNING id",
	})
}

// write writes every event at its time, each in a transaction of its own.
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
		defer func() { _ = closeSleep() }() // it holds nothing back
		return pace(ctx, schedule{l.start, len(l.tickets), func(i int) time.Duration { return l.tickets[i].at }}, due, sleep)
	}}
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

// settle waits until everything has arrived, or long enough.
func (l *latency) settle(ctx context.Context) error {
	timeout := time.NewTimer(settleWithin)
	defer timeout.Stop()
	for _, s := range l.sides {
		select {
		case <-s.seen.all:
		case <-timeout.C:
			return nil // what is missing is counted
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// times returns the sorted differences that of gives for measured events.
func (l *latency) times(of func(*side, *mark) time.Duration, which ...int) []time.Duration {
	var all []time.Duration
	for _, i := range which {
		s := l.sides[i]
		for id := 1; id < len(s.marks); id++ {
			m := &s.marks[id]
			if l.tickets[m.ticket].measure && m.entered.Load() > 0 {
				all = append(all, of(s, m))
			}
		}
	}
	slices.Sort(all)
	return all
}

func (l *latency) report() LatencyResult {
	arrival := func(_ *side, m *mark) time.Duration { return time.Duration(m.entered.Load()) - m.committed }
	relay, floor := l.times(arrival, relaySide), l.times(arrival, floorSide)
	r := LatencyResult{
		P50: ms(percentile(relay, 0.5)), P90: ms(percentile(relay, 0.9)), P99: ms(percentile(relay, 0.99)), Max: ms(percentile(relay, 1)),
		FloorP50: ms(percentile(floor, 0.5)), FloorP99: ms(percentile(floor, 0.99)),
		Lost: l.sides[relaySide].seen.missing(),
	}
	fromBegin := func(_ *side, m *mark) time.Duration { return time.Duration(m.entered.Load()) - m.commit }
	took := func(_ *side, m *mark) time.Duration { return m.committed - m.commit }
	late := func(_ *side, m *mark) time.Duration { return m.begun - l.tickets[m.ticket].at }
	l.printf("%d events at %d/s, in turns of %v with as many of the floor; %d writers\n\n", l.want.Events, l.want.Rate, blockTime, writersFor(l.want.Rate))
	w := newTable(l.Out, "milliseconds", "p50", "p90", "p99", "max")
	w.times("commit returned -> handler", relay)
	w.times("  the floor: LISTEN + claim", floor)
	w.times("COMMIT sent -> handler", l.times(fromBegin, relaySide))
	w.times("  the floor", l.times(fromBegin, floorSide))
	w.times("COMMIT itself, bell auto", l.times(took, relaySide))
	w.times("  with NOTIFY always", l.times(took, floorSide))
	w.times("begun later than scheduled", l.times(late, relaySide, floorSide))
	l.printf("\np50 is %.2f times the floor; lost=%d duplicates=%d, floor lost=%d\n", ratio(r.P50, r.FloorP50), r.Lost,
		l.sides[relaySide].seen.duplicates.Load(), l.sides[floorSide].seen.missing())
	return r
}
