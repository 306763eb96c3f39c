package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	outboxsql "github.com/notifyd/notifyd/sql"
)

// Soak writes events at a fixed rate for a while. It measures their latency, the growth of the table, and the CPU time of
// the relay. The latency begins when an event is due to be written, and includes the writer, the commit and the relay.
type Soak struct {
	Rate, Seconds int
	Mode          Mode
}

// Define implements [Experiment].
func (x *Soak) Define(cmd *cobra.Command) {
	cmd.Use = "soak"
	cmd.Short = "Latency, table size and CPU time over a while at a fixed rate"
	cmd.Long = `soak writes events at a fixed rate, each in a separate transaction. It measures
the time from the moment at which an event was due to be written to the call of
the handler, dead tuples, the size of the table, and the CPU time of the relay.
The exit code is 1 if an event was lost.`

	flags := cmd.Flags()
	flags.IntVar(&x.Rate, "rate", 5000, "transactions per `second`")
	flags.IntVar(&x.Seconds, "seconds", 60, "`seconds` to write for")
	addMode(flags, &x.Mode)
}

// Check implements [Experiment].
func (x *Soak) Check() error {
	return atLeast(1, option{"rate", x.Rate}, option{"seconds", x.Seconds})
}

// dueToHandler is the time that [Soak] and [Takeover] measure.
const dueToHandler = "due to be written -> handler"

// soakWriters is the number of writers: at 5,000/s a commit may take 6 ms.
const soakWriters = 32

// soak writes at a fixed rate into one table.
type soak struct {
	*Env
	want    *Soak
	schema  string
	written atomic.Int64
	dead    int64 // the most dead tuples of a sample
	bytes   int64 // the size of the table in the last sample, with indexes
}

// Run implements [Experiment].
func (x *Soak) Run(ctx context.Context, e *Env) (*Result, error) {
	r := &Result{}
	r.Say("events of %d B at %s/s, one per transaction, %d writers; the relay in a process of its own", payloadBytes, number(float64(x.Rate)), soakWriters)
	for _, mode := range x.Mode.tables() {
		s := &soak{Env: e, want: x}
		if err := s.measure(ctx, mode, r); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (s *soak) measure(ctx context.Context, mode outboxsql.Mode, r *Result) (err error) {
	s.schema, err = s.migrate(ctx, "soak_"+string(mode), outboxsql.NotifyAuto, mode)
	if err != nil {
		return err
	}
	events := s.want.Rate * s.want.Seconds
	relay, err := s.startProcess(ctx, s.schema, order{Events: events})
	if err != nil {
		return err
	}

	before := cpuOf(relay.sessions...)
	took, err := s.write(ctx, events)
	if err == nil {
		err = s.drained(ctx, s.schema, mode)
		if ctx.Err() == nil {
			err = nil // events that are left count as lost
		}
	}
	sessions := cpuOf(relay.sessions...) - before
	if err == nil {
		err = s.look(ctx)
	}
	sum, stopErr := relay.stop()
	if err := errors.Join(err, stopErr); err != nil {
		return err
	}
	s.report(r, r.Column(string(mode)), sum, took, sessions)
	return nil
}

// write follows the schedule and samples the table meanwhile.
func (s *soak) write(ctx context.Context, events int) (took time.Duration, err error) {
	statement := insertSQL(s.schema)
	w, err := s.connectWriters(ctx, soakWriters, statement)
	if err != nil {
		return 0, err
	}
	defer w.close(ctx)

	plan := schedule{time.Now(), events, steadily(s.want.Rate)}
	filling := dueFilling(payloadBytes)
	sampling := start(ctx, s.sample)
	err = w.onSchedule(ctx, plan, func(ctx context.Context, i int, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, statement, duePayload(plan.due(i), filling))
		s.written.Add(1)
		return err
	})
	took = time.Since(plan.start)
	return took, errors.Join(err, sampling.stop())
}

// sample samples the table every second until ctx ends.
func (s *soak) sample(ctx context.Context) error {
	for {
		if pause(ctx, time.Second) != nil {
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
	err := s.Pool.QueryRow(ctx, `SELECT n_dead_tup, pg_total_relation_size(relid) FROM pg_stat_user_tables WHERE relid = $1::regclass`,
		table(s.schema)).Scan(&dead, &s.bytes)
	if err != nil {
		return fmt.Errorf("look at the table: %w", err)
	}
	s.dead = max(s.dead, dead)
	return nil
}

func (s *soak) report(r *Result, c *Column, sum account, took, sessions time.Duration) {
	written := float64(s.written.Load())
	c.Set("events", written, 0)
	c.Set("events per second", written/took.Seconds(), 0)
	c.times(dueToHandler, sum.Times, soakPercentiles()...)
	c.Set("CPU of the relay's process, us/event", perEvent(sum.CPU, written), 2)
	if sessions > 0 {
		c.Set("CPU of its sessions in PostgreSQL, us/event", perEvent(sessions, written), 2)
	}
	c.Set("dead tuples, at most", float64(s.dead), 0)
	c.Set("table, bytes/event", float64(s.bytes)/written, 0)
	r.Count(sum.Faults)
}
