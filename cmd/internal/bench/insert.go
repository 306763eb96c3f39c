package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Insert measures how many transactions writers commit per second: without a trigger; with the default trigger and a
// running relay; with a suppressed trigger and no relay; with the default trigger and no relay, or a frozen one; and with a
// notification of every event. The variants take turns. It also measures commits at a low rate, at which the running relay
// listens.
type Insert struct {
	Writers, Seconds  int
	Mode              Mode
	Serialized, Total bool
}

// Define implements [Experiment].
func (x *Insert) Define(cmd *cobra.Command) {
	cmd.Use = "insert"
	cmd.Short = "What the trigger costs the writers"
	cmd.Long = `insert lets writers commit one event after the other, as fast as they can, and
counts: without a trigger; with the default trigger and a relay at work; with the
trigger suppressed and no relay, which is the cost of the trigger alone;
without a relay; next to a frozen relay, once the server has ended its session; and
with a notification of every event. These take turns. Then it compares commits at a
low rate, at which the relay listens.`

	flags := cmd.Flags()
	flags.IntVar(&x.Writers, "writers", 16, "`number` of connections that write")
	flags.IntVar(&x.Seconds, "seconds", 5, "`seconds` to measure each of them for")
	flags.BoolVar(&x.Serialized, "serialized", false, "measure serialized writers (migrate --serialize-writers on) as well")
	flags.BoolVar(&x.Total, "total", false, "the relay at work delivers in the order of ids (order: total); needs --mode stream")
	addMode(flags, &x.Mode)
}

// Check implements [Experiment].
func (x *Insert) Check() error {
	if x.Total && x.Mode != ModeStream {
		return errors.New("--total needs --mode stream")
	}
	return atLeast(1, option{"writers", x.Writers}, option{"seconds", x.Seconds})
}

const (
	// longestWarmUp bounds the start of a round that is not counted: the relay wakes up in it.
	longestWarmUp = 250 * time.Millisecond
	// slowRate and slowWriters make a rate in commits per second at which a relay listens.
	slowRate    = 50
	slowWriters = 4
)

// notifying is a table with one notify mode.
type notifying struct {
	name   string
	notify outboxsql.NotifyMode
	// attend starts the company of the writers: a relay, a lock or a listener; nil starts none.
	attend func(*insert, context.Context, *notifying) (stop func() error, err error)

	mode   outboxsql.Mode
	schema string
	relay  *process        // at work, or nil
	rates  []float64       // commits per second, by round
	took   []time.Duration // each commit
	slow   []time.Duration // each commit at a low rate
	behind []float64       // seconds that the relay needed to catch up, by round
}

// noTrigger is the variant that the others are compared with.
const noTrigger = "none: no trigger"

// variants returns the variants of one mode, in the order of the table.
func (x *Insert) variants(mode outboxsql.Mode) []*notifying {
	all := []*notifying{
		{name: noTrigger, notify: outboxsql.NotifyOff},
		{name: "auto: a relay at work", notify: outboxsql.NotifyAuto, attend: (*insert).work},
		{name: "silent: the trigger alone", notify: outboxsql.NotifyAuto, attend: (*insert).suppress},
		{name: "alone: no relay", notify: outboxsql.NotifyAuto},
		{name: "frozen: a frozen relay", notify: outboxsql.NotifyAuto, attend: (*insert).freeze},
		{name: "always: NOTIFY every time", notify: outboxsql.NotifyAlways, attend: (*insert).listen},
	}
	if x.Serialized {
		all = append(all, &notifying{name: "serialized writers", notify: outboxsql.NotifyOff, attend: (*insert).serialize})
	}
	for _, v := range all {
		v.mode = mode
	}
	return all
}

type insert struct {
	*Env
	want *Insert
}

// Run implements [Experiment].
func (x *Insert) Run(ctx context.Context, e *Env) (_ *Result, err error) {
	b := &insert{Env: e, want: x}
	var all []*notifying
	for _, mode := range x.Mode.tables() {
		all = append(all, x.variants(mode)...)
	}
	var statements []string
	for i, v := range all {
		v.schema, err = b.migrate(ctx, fmt.Sprintf("insert_%d", i), v.notify, v.mode)
		if err != nil {
			return nil, err
		}
		statements = append(statements, insertSQL(v.schema))
		if v.attend == nil {
			continue
		}
		stop, err := v.attend(b, ctx, v)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", v.name, err)
		}
		e.Cleanup(func(context.Context) error { return stop() })
	}
	w, err := b.connectWriters(ctx, x.Writers, statements...)
	if err != nil {
		return nil, err
	}
	defer w.close(ctx)

	if _, err := b.Pool.Exec(ctx, "CHECKPOINT"); err != nil {
		return nil, err
	}
	if err := b.rounds(ctx, all, w); err != nil {
		return nil, err
	}
	if err := b.slowRounds(ctx, all, w[:min(slowWriters, len(w))]); err != nil {
		return nil, err
	}
	return b.report(all), nil
}

// serialize serializes the writers of a variant.
func (b *insert) serialize(ctx context.Context, v *notifying) (stop func() error, err error) {
	conn, err := b.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer store.Close(ctx, conn)
	return func() error { return nil }, outboxsql.SerializeWriters(ctx, conn, v.schema, true, outboxsql.SerializeOptions{})
}

// work starts a relay.
func (b *insert) work(ctx context.Context, v *notifying) (stop func() error, err error) {
	v.relay, err = b.startProcess(ctx, v.schema, order{Total: b.want.Total})
	return func() error {
		_, err := v.relay.stop()
		return err
	}, err
}

// freeze starts a relay, freezes it, and waits until the server has ended the session by which it listens.
func (b *insert) freeze(ctx context.Context, v *notifying) (kill func() error, err error) {
	relay, err := b.startProcess(ctx, v.schema, order{Total: b.want.Total})
	if err != nil {
		return nil, err
	}
	kill = func() error {
		err := relay.cmd.Process.Kill()
		_ = relay.cmd.Wait() // it was killed
		return err
	}

	err = relay.cmd.Process.Signal(syscall.SIGSTOP)
	for listens := true; listens && err == nil; {
		// 1853122163 is 'ntfs' in ASCII; sql/triggers.sql has the same number.
		err = b.Pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks WHERE classid = 1853122163 AND objid = (hashtext($1)::bigint & 4294967295)::oid
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`, pgschema.Channel(v.schema)).Scan(&listens)
		if err == nil {
			err = pause(ctx, longestWarmUp)
		}
	}
	if err != nil {
		return nil, errors.Join(err, kill())
	}
	return kill, nil
}

// suppress takes the lock that the trigger tests, as a polling relay does.
func (b *insert) suppress(ctx context.Context, v *notifying) (stop func() error, err error) {
	// 1853122162 is 'ntfr' in ASCII; sql/triggers.sql has the same number.
	conn, err := b.session(ctx, "SELECT pg_advisory_lock(1853122162::bigint << 32 | $1::regclass::oid::bigint)", table(v.schema))
	return func() error { store.Close(ctx, conn); return nil }, err
}

// listen receives notifications and discards them: without a listener notifications would be cheaper than in production.
func (b *insert) listen(ctx context.Context, v *notifying) (stop func() error, err error) {
	conn, err := b.session(ctx, "LISTEN "+pgx.Identifier{pgschema.Channel(v.schema)}.Sanitize())
	if err != nil {
		return nil, err
	}
	r := start(ctx, func(ctx context.Context) error {
		defer store.Close(ctx, conn)
		for {
			if _, err := conn.WaitForNotification(ctx); err != nil {
				return endedBy(ctx, err)
			}
		}
	})
	return r.stop, nil
}

// rounds measures the variants in turns.
func (b *insert) rounds(ctx context.Context, all []*notifying, w writers) error {
	rounds := max(b.want.Seconds, leastRounds)
	length := time.Duration(b.want.Seconds) * time.Second / time.Duration(rounds)
	_, err := inTurns(ctx, rounds, all, func(ctx context.Context, v *notifying) (_ int, err error) {
		took, err := writeRound(ctx, v, w, length)
		if err != nil {
			return 0, fmt.Errorf("variant %s: %w", v.name, err)
		}
		v.took = append(v.took, took...)
		v.rates = append(v.rates, float64(len(took))/length.Seconds())
		if v.relay == nil {
			return 0, nil
		}

		// The relay's remaining work must not fall into the next round.
		since := time.Now()
		err = b.drained(ctx, v.schema, v.mode)
		v.behind = append(v.behind, time.Since(since).Seconds())
		return 0, err
	})
	return err
}

// writeRound makes all writers write into one table for length, after a warm-up. It returns the duration of each commit.
func writeRound(ctx context.Context, v *notifying, w writers, length time.Duration) ([]time.Duration, error) {
	from := time.Now().Add(min(longestWarmUp, length/4))
	to := from.Add(length)
	took := make([][]time.Duration, len(w))
	data := payload(payloadBytes)
	statement := insertSQL(v.schema)
	err := w.until(ctx, to, func(ctx context.Context, i int, conn *pgx.Conn) error {
		began := time.Now()
		if _, err := conn.Exec(ctx, statement, data); err != nil {
			return err
		}
		now := time.Now()
		if now.After(from) && !now.After(to) {
			took[i] = append(took[i], now.Sub(began))
		}
		return nil
	})
	return slices.Concat(took...), err
}

// slowRounds measures commits at a low rate without a trigger and with a relay, in turns.
func (b *insert) slowRounds(ctx context.Context, all []*notifying, w writers) error {
	interval := time.Duration(len(w)) * time.Second / slowRate
	each := max(1, b.want.Seconds*slowRate/leastRounds/len(w)) // commits of a writer in a round
	compared := slices.DeleteFunc(slices.Clone(all), func(v *notifying) bool { return v.name != noTrigger && v.relay == nil })
	_, err := inTurns(ctx, leastRounds, compared, func(ctx context.Context, v *notifying) (_ int, err error) {
		took := make([][]time.Duration, len(w))
		err = w.each(ctx, func(ctx context.Context, i int, conn *pgx.Conn) error {
			for range each {
				if err := pause(ctx, interval); err != nil {
					return err
				}
				since := time.Now()
				if _, err := conn.Exec(ctx, insertSQL(v.schema), payload(payloadBytes)); err != nil {
					return err
				}
				took[i] = append(took[i], time.Since(since))
			}
			return nil
		})
		v.slow = append(v.slow, slices.Concat(took...)...)
		return 0, err
	})
	return err
}

func (b *insert) report(all []*notifying) *Result {
	r := &Result{Upright: true}
	r.Say("%d writers, one event of %d B per transaction; commits per second, medians of %d rounds, in turns",
		b.want.Writers, payloadBytes, len(all[0].rates))
	r.Say("at %d/s, few writers commit slowly, so that the relay listens", slowRate)
	var none *Column
	for _, v := range all {
		c := r.Column(string(v.mode) + ", " + v.name)
		if v.name == noTrigger {
			none = c
		}
		c.Set("median", Median(v.rates), 0)
		c.relate("/ none", "median", none)
		c.Set("lowest", slices.Min(v.rates), 0)
		c.Set("highest", slices.Max(v.rates), 0)
		if b.want.Serialized {
			slices.Sort(v.took)
			c.percentiles("commit", v.took, 0.5, 0.99)
		}
		if len(v.slow) > 0 {
			slices.Sort(v.slow)
			c.percentiles(fmt.Sprintf("commit at %d/s", slowRate), v.slow, 0.5, 0.99)
		}
		if v.relay != nil {
			r.Note("%s: the relay had caught up %.2f s after the last commit of a round (median)", v.mode, Median(v.behind))
		}
	}
	return r
}
