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

// SoakOptions of [Soak].
type SoakOptions struct {
	Options
	// Rate is how many transactions begin per second, during Seconds.
	Rate    int
	Seconds int
	// Mode of the table. With [ModeBoth] the stream is measured after the queue. The result is the queue's, and its field
	// Stream has the stream's.
	Mode Mode
}

// SoakResult is the result of [Soak]. Times are milliseconds from the moment at which an event was due to be written to
// the call of the handler. They include the writer, the commit and the relay.
type SoakResult struct {
	Events          int64   `json:"events"`
	EventsPerSecond float64 `json:"events_per_second"`
	P50             float64 `json:"p50_ms"`
	P99             float64 `json:"p99_ms"`
	P999            float64 `json:"p999_ms"`
	Max             float64 `json:"max_ms"`
	Lost            int64   `json:"lost"`
	Duplicates      int64   `json:"duplicates"`
	// RelayCPU is the CPU time of the relay's process, and SessionsCPU the CPU time of its sessions in a private server,
	// in seconds per million events.
	RelayCPU    float64 `json:"relay_cpu_s_per_million"`
	SessionsCPU float64 `json:"sessions_cpu_s_per_million"`
	// DeadTuples is the largest number in a sample. TableMiB is the size at the end, with indexes.
	DeadTuples int64   `json:"dead_tuples"`
	TableMiB   float64 `json:"table_mib"`
	// With ModeBoth: the stream's figures.
	Stream *SoakResult `json:"stream,omitempty"`
}

// OK reports whether no event was lost.
func (r SoakResult) OK() bool { return r.Lost == 0 && (r.Stream == nil || r.Stream.OK()) }

const (
	// sampleEvery is the interval of samples.
	sampleEvery = time.Second
	// shownSamples is how many samples the table for people shows.
	shownSamples = 12
	// soakWriters is the number of writers: at 5,000/s a commit may take 6 ms.
	soakWriters = 32
)

// sample is the state of the table at a time.
type sample struct {
	at      time.Duration
	dead    int64
	bytes   int64
	written int64
}

type soak struct {
	*env
	want    SoakOptions
	mode    outboxsql.Mode
	schema  string
	written atomic.Int64
	samples []sample
}

// Soak writes events at a fixed rate for a while. It measures their latency, the growth of the table, and the CPU time of
// the relay.
func Soak(ctx context.Context, o SoakOptions) (SoakResult, error) {
	if o.Rate < 1 || o.Seconds < 1 {
		return SoakResult{}, fmt.Errorf("rate and seconds must be at least 1, not %d and %d", o.Rate, o.Seconds)
	}
	if err := o.Mode.check(); err != nil {
		return SoakResult{}, err
	}
	var results []SoakResult
	err := within(ctx, o.Options, func(ctx context.Context, e *env) error {
		for _, mode := range o.Mode.tables() {
			e.printf("%s:\n", mode)
			one, err := (&soak{env: e, want: o, mode: mode}).run(ctx)
			if err != nil {
				return err
			}
			results = append(results, one)
		}
		return nil
	})
	if err != nil {
		return SoakResult{}, err
	}
	if len(results) > 1 {
		results[0].Stream = &results[1]
	}
	return results[0], nil
}

func (s *soak) run(ctx context.Context) (result SoakResult, err error) {
	if s.schema, err = s.migrateTo(ctx, "soak_"+string(s.mode), outboxsql.NotifyAuto, s.mode); err != nil {
		return result, err
	}
	events := s.want.Rate * s.want.Seconds
	relay, err := s.startProcess(ctx, s.schema, order{Events: events})
	if err != nil {
		return result, err
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
		return result, err
	}
	if err := s.drained(ctx, s.schema, s.mode); err != nil && ctx.Err() != nil {
		return result, err // otherwise the rest is counted as lost
	}
	sessions, _ := cpuOf(relay.sessions)
	if err := s.look(ctx, took); err != nil {
		return result, err
	}
	if err := stop(); err != nil {
		return result, err
	}
	return s.report(sum, took, sessions-before), nil
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
	defer s.progress(fmt.Sprintf("%s events at %s/s", number(float64(events)), number(float64(s.want.Rate))), int64(events), s.written.Load)()

	plan := schedule{time.Now(), events, steadily(s.want.Rate)}
	due := make(chan int, s.want.Rate) // one second's events; later ones are measured as late all the same
	sampling := start(ctx, func(ctx context.Context) error { return s.sample(ctx, plan.start) })
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
func (s *soak) sample(ctx context.Context, begin time.Time) error {
	for {
		if sleepTimer(ctx, sampleEvery) != nil {
			return nil //nolint:nilerr // that is how it ends
		}
		if err := s.look(ctx, time.Since(begin)); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

func (s *soak) look(ctx context.Context, at time.Duration) error {
	now := sample{at: at, written: s.written.Load()}
	err := s.pool.QueryRow(ctx, `SELECT n_dead_tup, pg_total_relation_size(relid) FROM pg_stat_user_tables WHERE relid = $1::regclass`,
		table(s.schema)).Scan(&now.dead, &now.bytes)
	if err != nil {
		return fmt.Errorf("look at the table: %w", err)
	}
	s.samples = append(s.samples, now)
	return nil
}

func (s *soak) report(sum account, took, sessions time.Duration) SoakResult {
	written := s.written.Load()
	r := SoakResult{
		Events: written, EventsPerSecond: round(float64(written)/took.Seconds(), 0),
		P50: ms(sum.P50), P99: ms(sum.P99), P999: ms(sum.P999), Max: ms(sum.Max),
		Lost: sum.Lost, Duplicates: sum.Duplicates,
		RelayCPU:    round(1e6*ratio(sum.CPU.Seconds(), float64(written)), 2),
		SessionsCPU: round(1e6*ratio(sessions.Seconds(), float64(written)), 2),
	}
	s.printf("%s events of %d B at %s/s, one per transaction, %d writers; the relay in a process of its own\n\n",
		number(float64(written)), payloadBytes, number(float64(s.want.Rate)), soakWriters)
	g := newTable(s.Out, "seconds", "written", "dead tuples", "table MiB")
	every := max(1, len(s.samples)/shownSamples)
	for i, at := range s.samples {
		r.DeadTuples = max(r.DeadTuples, at.dead)
		r.TableMiB = round(float64(at.bytes)/(1<<20), 1)
		if i%every == 0 || i == len(s.samples)-1 {
			g.row(fmt.Sprintf("%.0f", at.at.Seconds()), number(float64(at.written)), number(float64(at.dead)), fmt.Sprintf("%.1f", float64(at.bytes)/(1<<20)))
		}
	}
	s.printf("\n")
	g = newTable(s.Out, "milliseconds", "p50", "p99", "p99.9", "max")
	g.row("due to be written -> handler", fmt.Sprintf("%.3f", r.P50), fmt.Sprintf("%.3f", r.P99), fmt.Sprintf("%.3f", r.P999), fmt.Sprintf("%.3f", r.Max))
	s.printf("\nCPU seconds per million events: the relay's process %.2f", r.RelayCPU)
	if sessions > 0 {
		s.printf(", its sessions in PostgreSQL %.2f", r.SessionsCPU)
	}
	s.printf("\n%s/s written; lost=%d duplicates=%d\n", number(r.EventsPerSecond), r.Lost, r.Duplicates)
	return r
}
