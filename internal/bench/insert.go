package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	outboxsql "github.com/notifyd/notifyd/sql"
	"github.com/notifyd/notifyd/store"
)

// InsertOptions of [Insert].
type InsertOptions struct {
	Options
	// Writers is how many connections write at once, each one event per
	// transaction as fast as it can.
	Writers int
	// Seconds is how long each variant is measured for, in rounds.
	Seconds int
}

// InsertResult is what came of it: commits per second of all writers, medians
// of the rounds.
type InsertResult struct {
	None         float64 `json:"none"`
	Auto         float64 `json:"auto"`
	Silent       float64 `json:"silent"`
	Always       float64 `json:"always"`
	AutoRatio    float64 `json:"auto_ratio"`    // auto / none
	TriggerRatio float64 `json:"trigger_ratio"` // silent / none
}

// OK reports whether all went as it should.
func (InsertResult) OK() bool { return true }

const (
	// leastRounds make a median, however short the run.
	leastRounds = 3
	// longestWarmUp of a round is not counted: the relay wakes up in it.
	longestWarmUp = 250 * time.Millisecond
)

// variant is a table with one kind of bell.
type variant struct {
	name   string
	bell   outboxsql.Bell
	schema string
	rates  []float64
	cpu    share
	behind []float64 // seconds that the relay needed to catch up, per round
}

// share is CPU time, and the time of all cores that it is a share of.
type share struct {
	process, sessions, writers, capacity time.Duration
}

type insert struct {
	*env
	want     InsertOptions
	variants []*variant
	relay    *process
}

// The variants, in the order of the table.
const (
	noTrigger = iota
	bellAuto
	bellSilent
	bellAlways
)

// Insert measures how many transactions writers commit per second: without a
// trigger; with the bell as it is by default and a relay at work on the table;
// with the bell kept silent and no relay; and with a notification of every
// event. The variants take turns.
func Insert(ctx context.Context, o InsertOptions) (InsertResult, error) {
	if o.Writers < 1 || o.Seconds < 1 {
		return InsertResult{}, fmt.Errorf("writers and seconds must be at least 1, not %d and %d", o.Writers, o.Seconds)
	}
	var result InsertResult
	err := within(ctx, o.Options, func(ctx context.Context, e *env) (err error) {
		b := &insert{env: e, want: o, variants: []*variant{
			noTrigger:  {name: "none", bell: outboxsql.BellOff},
			bellAuto:   {name: "auto", bell: outboxsql.BellAuto},
			bellSilent: {name: "silent", bell: outboxsql.BellAuto},
			bellAlways: {name: "always", bell: outboxsql.BellAlways},
		}}
		if err := b.run(ctx); err != nil {
			return err
		}
		result = b.report()
		return nil
	})
	return result, err
}

func (b *insert) run(ctx context.Context) (err error) {
	for _, v := range b.variants {
		if v.schema, err = b.migrate(ctx, v.name, v.bell); err != nil {
			return err
		}
	}
	silence, err := b.hold(ctx, b.variants[bellSilent])
	if err != nil {
		return fmt.Errorf("hold the bell silent: %w", err)
	}
	defer store.Close(ctx, silence)
	stopListening, err := b.listen(ctx, b.variants[bellAlways])
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer func() { err = errors.Join(err, stopListening()) }()
	if b.relay, err = b.startProcess(ctx, b.variants[bellAuto].schema, 0); err != nil {
		return err
	}
	defer func() {
		_, serr := b.relay.stop()
		err = errors.Join(err, serr)
	}()
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
	return b.rounds(ctx, writers)
}

// hold takes the lock that the trigger tests, as a relay that is awake does.
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

// listen hears what is notified and does nothing: a notification for which
// nobody listens is not what anybody has.
func (b *insert) listen(ctx context.Context, v *variant) (stop func() error, err error) {
	conn, err := b.connect(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{outboxsql.Channel(v.schema)}.Sanitize()); err != nil {
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
			return nil // that is what stop does
		}
		return err
	}, nil
}

// rounds lets the variants take turns, each round beginning with another one.
func (b *insert) rounds(ctx context.Context, writers []*pgx.Conn) error {
	rounds := max(b.want.Seconds, leastRounds)
	length := time.Duration(b.want.Seconds) * time.Second / time.Duration(rounds)
	var done atomic.Int64
	defer b.progress("writing", int64(rounds*len(b.variants)), done.Load)()
	for i := range rounds {
		for j := range b.variants {
			v := b.variants[(i+j)%len(b.variants)]
			if err := b.round(ctx, v, writers, length); err != nil {
				return fmt.Errorf("variant %s: %w", v.name, err)
			}
			// What the relay has left to do must not fall into the next round.
			if v.bell == outboxsql.BellAuto && v == b.variants[bellAuto] {
				since := time.Now()
				if err := b.drained(ctx, v.schema); err != nil {
					return err
				}
				v.behind = append(v.behind, time.Since(since).Seconds())
			}
			done.Add(1)
		}
	}
	return nil
}

// round lets all writers write into one table for a while and counts.
func (b *insert) round(ctx context.Context, v *variant, writers []*pgx.Conn, length time.Duration) error {
	warm := min(longestWarmUp, length/4)
	from := time.Now().Add(warm)
	to := from.Add(length)
	var commits atomic.Int64
	data := [][]byte{[]byte(payload(payloadBytes))}
	tasks := []func(context.Context) error{func(ctx context.Context) error { return b.watch(ctx, v, warm, length) }}
	for _, conn := range writers {
		tasks = append(tasks, func(ctx context.Context) error {
			n, err := writeUntil(ctx, conn, statement{name: v.name, params: data}, from, to)
			commits.Add(n)
			return err
		})
	}
	if err := together(ctx, tasks...); err != nil {
		return err
	}
	v.rates = append(v.rates, float64(commits.Load())/length.Seconds())
	return nil
}

// writeUntil commits one event after the other and returns how many commits
// returned between from and to.
func writeUntil(ctx context.Context, conn *pgx.Conn, s statement, from, to time.Time) (n int64, err error) {
	for {
		if res := conn.PgConn().ExecPrepared(ctx, s.name, s.params, inBinary(), nil).Read(); res.Err != nil {
			return n, res.Err
		}
		now := time.Now()
		if now.After(to) {
			return n, nil
		}
		if now.After(from) {
			n++
		}
	}
}

// watch takes who used how much of the CPU in a round.
func (b *insert) watch(ctx context.Context, v *variant, warm, length time.Duration) error {
	if err := sleepTimer(ctx, warm); err != nil {
		return err
	}
	before := b.used()
	if err := sleepTimer(ctx, length); err != nil {
		return err
	}
	after := b.used()
	v.cpu.process += after.process - before.process
	v.cpu.sessions += after.sessions - before.sessions
	v.cpu.writers += after.writers - before.writers
	v.cpu.capacity += length * time.Duration(runtime.NumCPU())
	return nil
}

func (b *insert) used() (s share) {
	s.process, _ = cpuOf([]int{b.relay.cmd.Process.Pid})
	s.sessions, _ = cpuOf(b.relay.sessions)
	s.writers = ownCPU()
	return s
}

func (b *insert) report() InsertResult {
	var medians []float64
	for _, v := range b.variants {
		medians = append(medians, round(median(v.rates), 0))
	}
	r := InsertResult{None: medians[noTrigger], Auto: medians[bellAuto], Silent: medians[bellSilent], Always: medians[bellAlways]}
	r.AutoRatio, r.TriggerRatio = round(ratio(r.Auto, r.None), 3), round(ratio(r.Silent, r.None), 3)
	b.printf("%d writers, one event of %d B per transaction; medians of %d rounds, in turns\n\n", b.want.Writers, payloadBytes, len(b.variants[0].rates))
	g := newTable(b.Out, "commits per second", "median", "of none", "lowest", "highest")
	for i, name := range []string{"none: no trigger", "auto: a relay at work", "silent: the trigger alone", "always: NOTIFY every time"} {
		low, high := extremes(b.variants[i].rates)
		g.row(name, number(medians[i]), fmt.Sprintf("%.3f", ratio(medians[i], r.None)), number(low), number(high))
	}
	auto := b.variants[bellAuto]
	b.printf("\nCPU while the relay is at work, of all cores: the writers' program %s", auto.cpu.percent(auto.cpu.writers))
	if auto.cpu.process > 0 {
		b.printf(", the relay %s", auto.cpu.percent(auto.cpu.process))
	}
	if len(b.relay.sessions) > 0 {
		b.printf(", its sessions in PostgreSQL %s", auto.cpu.percent(auto.cpu.sessions))
	}
	b.printf("\nthe relay had caught up %.2f s after the last commit of a round (median)\n", median(auto.behind))
	return r
}

func (s share) percent(of time.Duration) string {
	return fmt.Sprintf("%.0f %%", 100*ratio(float64(of), float64(s.capacity)))
}
