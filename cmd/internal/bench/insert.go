package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Insert measures how many transactions writers commit per second: without a trigger; with the default trigger and a
// running relay; with a suppressed trigger and no relay; with the default trigger and no relay, or a frozen one; and with a
// notification of every event. The variants take turns. It also measures commits at a low rate, at which the running relay
// listens.
type Insert struct {
	// Writers is the number of connections that write concurrently, as fast as possible, one event per transaction.
	Writers int
	// Seconds is how long each variant is measured, over all rounds.
	Seconds int
	// Mode of the tables. With [ModeBoth] the variants of a queue and of a stream take turns.
	Mode Mode
	// Serialized also measures serialized writers, without a trigger, and compares them with writers without a trigger.
	Serialized bool
	// Total makes the relay at work deliver in total order. Requires ModeStream.
	Total bool
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

// variant is a table with one notify mode.
type variant struct {
	name   string // of the schema and the statement
	about  string
	notify outboxsql.NotifyMode
	mode   outboxsql.Mode
	schema string
	line   bool // writers are serialized
	rates  []float64
	took   []time.Duration // each commit; kept if latencies are printed
	slow   []time.Duration // each commit at a low rate
	relay  *process        // running on the table, or nil
	behind []float64       // seconds that the relay needed to catch up, per round
}

type insert struct {
	*env
	want     *Insert
	variants []*variant // the variants of one mode together
}

// The variants, in the order of the table.
const (
	noTrigger = iota
	notifyAuto
	notifySuppressed
	notifyAlone
	notifyFrozen
	notifyAlways
	inLine // with Serialized only
)

func (x *Insert) run(ctx context.Context, e *env) (*Result, error) {
	b := &insert{env: e, want: x}
	for _, mode := range x.Mode.tables() {
		of := []*variant{
			noTrigger:        {name: "none", about: "none: no trigger", notify: outboxsql.NotifyOff},
			notifyAuto:       {name: "auto", about: "auto: a relay at work", notify: outboxsql.NotifyAuto},
			notifySuppressed: {name: "silent", about: "silent: the trigger alone", notify: outboxsql.NotifyAuto},
			notifyAlone:      {name: "alone", about: "alone: no relay", notify: outboxsql.NotifyAuto},
			notifyFrozen:     {name: "frozen", about: "frozen: a frozen relay", notify: outboxsql.NotifyAuto},
			notifyAlways:     {name: "always", about: "always: NOTIFY every time", notify: outboxsql.NotifyAlways},
		}
		if x.Serialized {
			of = append(of, &variant{name: "line", about: "serialized writers", notify: outboxsql.NotifyOff, line: true})
		}
		for _, v := range of {
			v.mode = mode
			v.name = string(mode) + "_" + v.name
			v.about = string(mode) + ", " + v.about
		}
		b.variants = append(b.variants, of...)
	}
	if err := b.measure(ctx); err != nil {
		return nil, err
	}
	return b.report(), nil
}

func (b *insert) measure(ctx context.Context) (err error) {
	for _, v := range b.variants {
		if v.schema, err = b.migrateTo(ctx, v.name, v.notify, v.mode); err != nil {
			return err
		}
		if err := b.serialize(ctx, v); err != nil {
			return err
		}
	}
	for of := range slices.Chunk(b.variants, b.each()) {
		stop, err := b.attend(ctx, of)
		defer func() { err = errors.Join(err, stop()) }()
		if err != nil {
			return err
		}
	}
	writers, err := b.connectMany(ctx, b.want.Writers, func(c *pgx.Conn) error {
		for _, v := range b.variants {
			if err := prepare(ctx, c, map[string]string{v.name: insertSQL(v.schema)}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("connect the writers: %w", err)
	}
	defer closeAll(ctx, writers)

	if _, err := b.pool.Exec(ctx, "CHECKPOINT"); err != nil {
		return err
	}
	if err := b.rounds(ctx, writers); err != nil {
		return err
	}
	for of := range slices.Chunk(b.variants, b.each()) {
		if err := b.slowRounds(ctx, []*variant{of[noTrigger], of[notifyAuto]}, writers[:min(slowWriters, len(writers))]); err != nil {
			return err
		}
	}
	return nil
}

// each returns how many variants a mode has.
func (b *insert) each() int {
	if b.want.Serialized {
		return inLine + 1
	}
	return inLine
}

// serialize serializes the writers of a variant that measures them.
func (b *insert) serialize(ctx context.Context, v *variant) error {
	if !v.line {
		return nil
	}
	conn, err := b.connect(ctx)
	if err != nil {
		return err
	}
	defer store.Close(ctx, conn)
	return outboxsql.SerializeWriters(ctx, conn, v.schema, true, outboxsql.SerializeOptions{})
}

// attend starts the relay, the lock and the listener of the variants of one mode. The caller calls stop, even after an
// error.
func (b *insert) attend(ctx context.Context, of []*variant) (stop func() error, err error) {
	var stops []func() error
	stop = func() (err error) {
		for _, f := range slices.Backward(stops) {
			err = errors.Join(err, f())
		}
		return err
	}
	silence, err := b.hold(ctx, of[notifySuppressed])
	if err != nil {
		return stop, fmt.Errorf("suppress the trigger: %w", err)
	}
	stops = append(stops, func() error { store.Close(ctx, silence); return nil })
	stopListening, err := b.listen(ctx, of[notifyAlways])
	if err != nil {
		return stop, fmt.Errorf("listen: %w", err)
	}
	stops = append(stops, stopListening)
	auto := of[notifyAuto]
	if auto.relay, err = b.startProcess(ctx, auto.schema, order{Total: b.want.Total}); err != nil {
		return stop, err
	}
	stops = append(stops, func() error {
		_, err := auto.relay.stop()
		return err
	})
	kill, err := b.freeze(ctx, of[notifyFrozen])
	if err != nil {
		return stop, fmt.Errorf("freeze a relay: %w", err)
	}
	stops = append(stops, kill)
	return stop, nil
}

// freeze starts a relay, freezes it, and waits until the server has ended the session by which it listens.
func (b *insert) freeze(ctx context.Context, v *variant) (kill func() error, err error) {
	relay, err := b.startProcess(ctx, v.schema, order{Total: b.want.Total})
	if err != nil {
		return nil, err
	}
	kill = func() error {
		err := relay.cmd.Process.Kill()
		_ = relay.cmd.Wait() // it was killed
		return err
	}
	if err = relay.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return nil, errors.Join(err, kill())
	}

	for listens := true; listens && err == nil; {
		// 1853122163 is 'ntfs' in ASCII; sql/triggers.sql has the same number.
		err = b.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks WHERE classid = 1853122163 AND objid = (hashtext($1)::bigint & 4294967295)::oid
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`, pgschema.Channel(v.schema)).Scan(&listens)
		if err == nil {
			err = sleepTimer(ctx, longestWarmUp)
		}
	}
	if err != nil {
		return nil, errors.Join(err, kill())
	}
	return kill, nil
}

// hold takes the lock that the trigger tests, as a polling relay does.
func (b *insert) hold(ctx context.Context, v *variant) (*pgx.Conn, error) {
	conn, err := b.connect(ctx)
	if err != nil {
		return nil, err
	}
	// 1853122162 is 'ntfr' in ASCII; sql/triggers.sql has the same number.
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(1853122162::bigint << 32 | $1::regclass::oid::bigint)", table(v.schema)); err != nil {
		store.Close(ctx, conn)
		return nil, err
	}
	return conn, nil
}

// listen receives notifications and discards them: without a listener notifications would be cheaper than in production.
func (b *insert) listen(ctx context.Context, v *variant) (stop func() error, err error) {
	conn, err := b.connect(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{pgschema.Channel(v.schema)}.Sanitize()); err != nil {
		store.Close(ctx, conn)
		return nil, err
	}
	r := start(ctx, func(ctx context.Context) error {
		for {
			if _, err := conn.WaitForNotification(ctx); err != nil {
				return err
			}
		}
	})
	return func() error {
		err := r.stop()
		store.Close(ctx, conn)
		if errors.Is(err, context.Canceled) {
			return nil // stop ends it
		}
		return err
	}, nil
}

// rounds measures the variants in turns.
func (b *insert) rounds(ctx context.Context, writers []*pgx.Conn) error {
	rounds := max(b.want.Seconds, leastRounds)
	length := time.Duration(b.want.Seconds) * time.Second / time.Duration(rounds)
	took, err := inTurns(ctx, rounds, b.variants, func(ctx context.Context, v *variant) (rate float64, err error) {
		if rate, err = b.round(ctx, v, writers, length); err != nil {
			return rate, fmt.Errorf("variant %s: %w", v.name, err)
		}
		// The relay's remaining work must not fall into the next round.
		if v.relay != nil {
			since := time.Now()
			if err := b.drained(ctx, v.schema, v.mode); err != nil {
				return rate, err
			}
			v.behind = append(v.behind, time.Since(since).Seconds())
		}
		return rate, nil
	})
	for i, v := range b.variants {
		v.rates = took[i]
	}
	return err
}

// slowRounds measures commits at a low rate in two tables, in turns.
func (b *insert) slowRounds(ctx context.Context, of []*variant, writers []*pgx.Conn) error {
	pause := time.Duration(len(writers)) * time.Second / slowRate
	each := b.want.Seconds * slowRate / leastRounds / len(writers) // commits of a writer in a round
	_, err := inTurns(ctx, leastRounds, of, func(ctx context.Context, v *variant) (_ int, err error) {
		took := make([][]time.Duration, len(writers))
		var tasks []func(context.Context) error
		for i, conn := range writers {
			tasks = append(tasks, func(ctx context.Context) (err error) {
				took[i], err = writeSlowly(ctx, conn, v.name, max(1, each), pause)
				return err
			})
		}
		err = together(ctx, tasks...)
		v.slow = append(v.slow, slices.Concat(took...)...)
		return 0, err
	})
	return err
}

// writeSlowly commits n events, with a pause before each, and returns the duration of each commit.
func writeSlowly(ctx context.Context, conn *pgx.Conn, name string, n int, pause time.Duration) (took []time.Duration, err error) {
	for range n {
		if err := sleepTimer(ctx, pause); err != nil {
			return took, err
		}
		since := time.Now()
		if res := conn.PgConn().ExecPrepared(ctx, name, [][]byte{[]byte(payload(payloadBytes))}, inBinary(), nil).Read(); res.Err != nil {
			return took, res.Err
		}
		took = append(took, time.Since(since))
	}
	return took, nil
}

// round makes all writers write into one table for length, and returns the commits per second.
func (b *insert) round(ctx context.Context, v *variant, writers []*pgx.Conn, length time.Duration) (rate float64, err error) {
	warm := min(longestWarmUp, length/4)
	from := time.Now().Add(warm)
	to := from.Add(length)
	took := make([][]time.Duration, len(writers))
	data := [][]byte{[]byte(payload(payloadBytes))}
	var tasks []func(context.Context) error
	for i, conn := range writers {
		tasks = append(tasks, func(ctx context.Context) (err error) {
			took[i], err = writeUntil(ctx, conn, statement{name: v.name, params: data}, from, to)
			return err
		})
	}
	if err := together(ctx, tasks...); err != nil {
		return 0, err
	}
	all := slices.Concat(took...)
	if b.want.Serialized {
		v.took = append(v.took, all...)
	}
	return float64(len(all)) / length.Seconds(), nil
}

// writeUntil commits one event after the other. It returns the duration of each commit that returned between from and to.
func writeUntil(ctx context.Context, conn *pgx.Conn, s statement, from, to time.Time) (took []time.Duration, err error) {
	for last := time.Now(); ; {
		if res := conn.PgConn().ExecPrepared(ctx, s.name, s.params, inBinary(), nil).Read(); res.Err != nil {
			return took, res.Err
		}
		now := time.Now()
		if now.After(to) {
			return took, nil
		}
		if now.After(from) {
			took = append(took, now.Sub(last))
		}
		last = now
	}
}

func (b *insert) report() *Result {
	r := &Result{upright: true}
	r.say("%d writers, one event of %d B per transaction; commits per second, medians of %d rounds, in turns",
		b.want.Writers, payloadBytes, len(b.variants[0].rates))
	r.say("at %d/s, few writers commit slowly, so that the relay listens", slowRate)
	for of := range slices.Chunk(b.variants, b.each()) {
		none := r.column(of[noTrigger].about)
		for _, v := range of {
			c := r.column(v.about)
			c.set("median", median(v.rates), 0)
			c.relate("/ none", "median", none)
			c.set("lowest", slices.Min(v.rates), 0)
			c.set("highest", slices.Max(v.rates), 0)
			if len(v.took) > 0 {
				slices.Sort(v.took)
				c.times("commit", v.took, 0.5, 0.99)
			}
			if len(v.slow) > 0 {
				slices.Sort(v.slow)
				c.times(fmt.Sprintf("commit at %d/s", slowRate), v.slow, 0.5, 0.99)
			}
		}
		r.note("%s: the relay had caught up %.2f s after the last commit of a round (median)", of[notifyAuto].mode, median(of[notifyAuto].behind))
	}
	return r
}
