package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	outboxsql "github.com/notifyd/notifyd/sql"
)

// Soak writes events at a fixed rate for a while. It measures their latency, the growth of the table, and the CPU time of
// the relay. The latency begins when an event is due to be written, and includes the writer, the commit and the relay.
type Soak struct {
	// Rate is how many transactions begin per second, during Seconds.
	Rate    int
	Seconds int
	// Mode of the table. With [ModeBoth] the stream is measured after the queue.
	Mode Mode
}

// Check implements [Experiment].
func (x *Soak) Check() error {
	return atLeast(1, option{"rate", x.Rate}, option{"seconds", x.Seconds})
}

// dueToHandler is the time that [Soak] and [Takeover] measure.
const dueToHandler = "due to be written -> handler"

const (
	// sampleEvery is the interval of samples.
	sampleEvery = time.Second
	// soakWriters is the number of writers: at 5,000/s a commit may take 6 ms.
	soakWriters = 32
)

// soak writes at a fixed rate into one table.
type soak struct {
	*env
	want    *Soak
	schema  string
	written atomic.Int64
	dead    int64 // the most dead tuples of a sample
	bytes   int64 // the size of the table in the last sample, with indexes
}

func (x *Soak) run(ctx context.Context, e *env) (*Result, error) {
	r := &Result{}
	r.say("events of %d B at %s/s, one per transaction, %d writers; the relay in a process of its own", payloadBytes, number(float64(x.Rate)), soakWriters)
	for _, mode := range x.Mode.tables() {
		s := &soak{env: e, want: x}
		if err := s.measure(ctx, mode, r); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (s *soak) measure(ctx context.Context, mode outboxsql.Mode, r *Result) (err error) {
	if s.schema, err = s.migrateTo(ctx, "soak_"+string(mode), outboxsql.NotifyAuto, mode); err != nil {
		return err
	}
	events := s.want.Rate * s.want.Seconds
	relay, err := s.startProcess(ctx, s.schema, order{Events: events})
	if err != nil {
		return err
	}
	var sum account
	stopped := false
	stop := func() (err error) {
		if !stopped {
			stopped = true
			sum, err = relay.stop()
		}
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()

	before, _ := cpuOf(relay.sessions)
	took, err := s.write(ctx, events)
	if err != nil {
		return err
	}
	if err := s.drained(ctx, s.schema, mode); err != nil && ctx.Err() != nil {
		return err // otherwise the rest is counted as lost
	}
	sessions, _ := cpuOf(relay.sessions)
	if err := s.look(ctx); err != nil {
		return err
	}
	if err := stop(); err != nil {
		return err
	}
	s.report(r, r.column(string(mode)), sum, took, sessions-before)
	return nil
}

// write follows the schedule and samples the table meanwhile.
func (s *soak) write(ctx context.Context, events int) (took time.Duration, err error) {
	conns, err := s.connectMany(ctx, soakWriters, func(c *pgx.Conn) error {
		return prepare(ctx, c, map[string]string{"insert": insertSQL(s.schema)})
	})
	if err != nil {
		return 0, fmt.Errorf("connect the writers: %w", err)
	}
	defer closeAll(ctx, conns)
	sleep, closeSleep, err := newSleeper()
	if err != nil {
		return 0, err
	}
	defer func() { _ = closeSleep() }() // a timer has nothing to flush

	plan := schedule{time.Now(), events, steadily(s.want.Rate)}
	due := make(chan int, s.want.Rate) // one second's events; later ones are measured as late all the same
	sampling := start(ctx, s.sample)
	tasks := []func(context.Context) error{func(ctx context.Context) error { return pace(ctx, plan, due, sleep) }}
	for _, conn := range conns {
		tasks = append(tasks, func(ctx context.Context) error {
			data := duePayload(payloadBytes)
			for i := range due {
				setDue(data, plan.due(i))
				if res := conn.PgConn().ExecPrepared(ctx, "insert", [][]byte{data}, inBinary(), nil).Read(); res.Err != nil {
					return fmt.Errorf("write an event: %w", res.Err)
				}
				s.written.Add(1)
			}
			return nil
		})
	}
	err = together(ctx, tasks...)
	took = time.Since(plan.start)
	return took, errors.Join(err, sampling.stop())
}

// sample samples the table every second until ctx ends.
func (s *soak) sample(ctx context.Context) error {
	for {
		if sleepTimer(ctx, sampleEvery) != nil {
			return nil //nolint:nilerr // that is how it ends
		}
		if err := s.look(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// look takes one sample.
func (s *soak) look(ctx context.Context) error {
	var dead int64
	err := s.pool.QueryRow(ctx, `SELECT n_dead_tup, pg_total_relation_size(relid) FROM pg_stat_user_tables WHERE relid = $1::regclass`,
		table(s.schema)).Scan(&dead, &s.bytes)
	if err != nil {
		return fmt.Errorf("look at the table: %w", err)
	}
	s.dead = max(s.dead, dead)
	return nil
}

func (s *soak) report(r *Result, c *Column, sum account, took, sessions time.Duration) {
	written := float64(s.written.Load())
	c.set("events", written, 0)
	c.set("events per second", written/took.Seconds(), 0)
	for _, p := range sum.Percentiles {
		c.set(dueToHandler+", "+p.Name+", ms", milliseconds(p.Time), 3)
	}
	c.set("CPU of the relay's process, us/event", perEvent(sum.CPU, written), 2)
	if sessions > 0 {
		c.set("CPU of its sessions in PostgreSQL, us/event", perEvent(sessions, written), 2)
	}
	c.set("dead tuples, at most", float64(s.dead), 0)
	c.set("table, bytes/event", float64(s.bytes)/written, 0)
	r.count(Faults{Lost: sum.Lost, Duplicates: sum.Duplicates})
}
