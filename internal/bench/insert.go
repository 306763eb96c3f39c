package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// InsertOptions of [Insert].
type InsertOptions struct {
	Options
	// Writers is the number of connections that write concurrently, as fast as possible, one event per transaction.
	Writers int
	// Seconds is how long each variant is measured, over all rounds.
	Seconds int
	// Mode of the tables. With [ModeBoth] the result is the queue's, and its field Stream has the stream's.
	Mode Mode
	// Serialized also measures serialized writers, without a trigger, and compares them with writers without a trigger.
	Serialized bool
	// Total makes the relay at work deliver in total order. Requires ModeStream.
	Total bool
}

// InsertResult is the result of [Insert]: commits per second of all writers, medians of
// the rounds.
type InsertResult struct {
	None         float64 `json:"none"`
	Auto         float64 `json:"auto"`
	Suppressed   float64 `json:"silent"`
	Alone        float64 `json:"alone"`
	Frozen       float64 `json:"frozen"`
	Always       float64 `json:"always"`
	AutoRatio    float64 `json:"auto_ratio"`    // auto / none
	TriggerRatio float64 `json:"trigger_ratio"` // silent / none
	AloneRatio   float64 `json:"alone_ratio"`   // alone / none
	FrozenRatio  float64 `json:"frozen_ratio"`  // frozen / none
	// The latencies of commits at a low rate, without a trigger and with a relay that listens, and the medians' ratio.
	SlowNone    *CommitLatency `json:"slow_none"`
	SlowListens *CommitLatency `json:"slow_listens"`
	ListenRatio float64        `json:"listen_ratio"`
	// With Serialized: the rate of serialized writers, the same divided by the rate without a trigger, and the commit
	// latencies of both.
	Serialized      float64        `json:"serialized,omitempty"`
	SerializedRatio float64        `json:"serialized_ratio,omitempty"`
	NoneLatency     *CommitLatency `json:"none_latency,omitempty"`
	LineLatency     *CommitLatency `json:"serialized_latency,omitempty"`
	// With ModeBoth: the figures of streams, and the suppressed rate of streams divided by the queues'.
	Stream      *InsertResult `json:"stream,omitempty"`
	StreamRatio float64       `json:"stream_ratio,omitempty"`
}

// CommitLatency is the time of a commit of one event, in milliseconds.
type CommitLatency struct {
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
}

func (l *CommitLatency) String() string { return fmt.Sprintf("%.2f and %.2f ms", l.P50, l.P99) }

// latencyOf returns the latency of commits with these durations.
func latencyOf(took []time.Duration) *CommitLatency {
	slices.Sort(took)
	ms := func(p float64) float64 { return round(percentile(took, p).Seconds()*1000, 3) }
	return &CommitLatency{P50: ms(0.5), P99: ms(0.99)}
}

// OK is true: no event of this bench can be lost.
func (InsertResult) OK() bool { return true }

const (
	// longestWarmUp bounds the start of a round that is not counted: the relay wakes up in it.
	longestWarmUp = 250 * time.Millisecond
	// slowRate and slowWriters make a rate in commits per second at which a relay listens.
	slowRate    = 50
	slowWriters = 4
)

// variant is a table with one notify mode.
type variant struct {
	name   string
	notify outboxsql.NotifyMode
	mode   outboxsql.Mode
	schema string
	line   bool // writers are serialized
	rates  []float64
	took   []time.Duration // each commit; kept if latencies are printed
	slow   []time.Duration // each commit at a low rate
	cpu    share
	relay  *process  // running on the table, or nil
	behind []float64 // seconds that the relay needed to catch up, per round
}

// share is CPU time as a share of the time of all cores.
type share struct {
	process, sessions, writers, capacity time.Duration
}

type insert struct {
	*env
	want     InsertOptions
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

// Insert measures how many transactions writers commit per second: without a trigger; with the default trigger and a
// running relay; with a suppressed trigger and no relay; with the default trigger and no relay, or a frozen one; and with a
// notification of every event. The variants take turns. It also measures commits at a low rate, at which the running relay
// listens.
func Insert(ctx context.Context, o InsertOptions) (InsertResult, error) {
	if o.Writers < 1 || o.Seconds < 1 {
		return InsertResult{}, fmt.Errorf("writers and seconds must be at least 1, not %d and %d", o.Writers, o.Seconds)
	}
	if err := o.Mode.check(); err != nil {
		return InsertResult{}, err
	}
	if o.Total && o.Mode != ModeStream {
		return InsertResult{}, errors.New("a total order needs --mode stream")
	}
	var result InsertResult
	err := within(ctx, o.Options, func(ctx context.Context, e *env) (err error) {
		b := &insert{env: e, want: o}
		for _, mode := range o.Mode.tables() {
			prefix := string(mode) + "_"
			b.variants = append(b.variants, []*variant{
				noTrigger:        {name: prefix + "none", mode: mode, notify: outboxsql.NotifyOff},
				notifyAuto:       {name: prefix + "auto", mode: mode, notify: outboxsql.NotifyAuto},
				notifySuppressed: {name: prefix + "silent", mode: mode, notify: outboxsql.NotifyAuto},
				notifyAlone:      {name: prefix + "alone", mode: mode, notify: outboxsql.NotifyAuto},
				notifyFrozen:     {name: prefix + "frozen", mode: mode, notify: outboxsql.NotifyAuto},
				notifyAlways:     {name: prefix + "always", mode: mode, notify: outboxsql.NotifyAlways},
			}...)
			if o.Serialized {
				b.variants = append(b.variants, &variant{name: prefix + "line", mode: mode, notify: outboxsql.NotifyOff, line: true})
			}
		}
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
	var done atomic.Int64
	defer b.progress("writing", int64(rounds*len(b.variants)), done.Load)()
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
		done.Add(1)
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
	tasks := []func(context.Context) error{func(ctx context.Context) error { return b.watch(ctx, v, warm, length) }}
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

// watch measures the CPU time of each process in a round.
func (b *insert) watch(ctx context.Context, v *variant, warm, length time.Duration) error {
	if err := sleepTimer(ctx, warm); err != nil {
		return err
	}
	before := v.used()
	if err := sleepTimer(ctx, length); err != nil {
		return err
	}
	after := v.used()
	v.cpu.process += after.process - before.process
	v.cpu.sessions += after.sessions - before.sessions
	v.cpu.writers += after.writers - before.writers
	v.cpu.capacity += length * time.Duration(runtime.NumCPU())
	return nil
}

func (v *variant) used() (s share) {
	if v.relay != nil {
		s.process, _ = cpuOf([]int{v.relay.cmd.Process.Pid})
		s.sessions, _ = cpuOf(v.relay.sessions)
	}
	s.writers = ownCPU()
	return s
}

func (b *insert) report() InsertResult {
	b.printf("%d writers, one event of %d B per transaction; medians of %d rounds, in turns\n\n", b.want.Writers, payloadBytes, len(b.variants[0].rates))
	g := newTable(b.Out, "commits per second", "median", "of none", "lowest", "highest")
	var results []InsertResult
	for of := range slices.Chunk(b.variants, b.each()) {
		results = append(results, b.rows(g, of))
	}
	r := results[0]
	if len(results) > 1 {
		r.Stream, r.StreamRatio = &results[1], round(ratio(results[1].Suppressed, r.Suppressed), 3)
	}
	for of := range slices.Chunk(b.variants, b.each()) {
		b.reportRelay(of[notifyAuto])
	}
	for i, one := range results {
		b.printf("\n%s, median and 99th percentile of a commit at %d/s: none %v, a relay listens %v; ratio of the medians %.3f\n",
			b.variants[i*b.each()].mode, slowRate, one.SlowNone, one.SlowListens, one.ListenRatio)
	}
	for i := range results {
		if one := &results[i]; one.LineLatency != nil {
			b.printf("\n%s, median and 99th percentile of a commit: none %v, serialized %v\n", b.variants[i*b.each()].mode, one.NoneLatency, one.LineLatency)
		}
	}
	if r.Stream != nil {
		b.printf("\nstream_ratio=%.3f (silent, by that of queues)\n", r.StreamRatio)
	}
	return r
}

// rows writes the variants of one mode.
func (b *insert) rows(g grid, of []*variant) InsertResult {
	medians := make([]float64, len(of))
	for i, v := range of {
		medians[i] = round(median(v.rates), 0)
	}
	r := InsertResult{
		None: medians[noTrigger], Auto: medians[notifyAuto], Suppressed: medians[notifySuppressed],
		Alone: medians[notifyAlone], Frozen: medians[notifyFrozen], Always: medians[notifyAlways],
		SlowNone: latencyOf(of[noTrigger].slow), SlowListens: latencyOf(of[notifyAuto].slow),
	}
	r.AloneRatio, r.FrozenRatio = round(ratio(r.Alone, r.None), 3), round(ratio(r.Frozen, r.None), 3)
	r.ListenRatio = round(ratio(r.SlowNone.P50, r.SlowListens.P50), 3)
	r.AutoRatio, r.TriggerRatio = round(ratio(r.Auto, r.None), 3), round(ratio(r.Suppressed, r.None), 3)
	if len(b.variants) > b.each() {
		g.row(string(of[0].mode) + ":")
	}
	names := []string{"none: no trigger", "auto: a relay at work", "silent: the trigger alone", "alone: no relay", "frozen: a frozen relay", "always: NOTIFY every time"}
	if b.want.Serialized {
		names = append(names, "serialized writers")
		r.Serialized, r.SerializedRatio = medians[inLine], round(ratio(medians[inLine], r.None), 3)
		r.NoneLatency, r.LineLatency = latencyOf(of[noTrigger].took), latencyOf(of[inLine].took)
	}
	for i, name := range names {
		low, high := extremes(of[i].rates)
		g.row(name, number(medians[i]), fmt.Sprintf("%.3f", ratio(medians[i], r.None)), number(low), number(high))
	}
	return r
}

// reportRelay prints the CPU time of the relay.
func (b *insert) reportRelay(auto *variant) {
	b.printf("\n%s, CPU while the relay is at work, of all cores: the writers' program %s", auto.mode, auto.cpu.percent(auto.cpu.writers))
	if auto.cpu.process > 0 {
		b.printf(", the relay %s", auto.cpu.percent(auto.cpu.process))
	}
	if len(auto.relay.sessions) > 0 {
		b.printf(", its sessions in PostgreSQL %s", auto.cpu.percent(auto.cpu.sessions))
	}
	b.printf("\nthe relay had caught up %.2f s after the last commit of a round (median)\n", median(auto.behind))
}

func (s share) percent(of time.Duration) string {
	return fmt.Sprintf("%.0f %%", 100*ratio(float64(of), float64(s.capacity)))
}
