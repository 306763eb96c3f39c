package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/notifyd/notifyd/internal/privateserver/pginstall"
	"github.com/notifyd/notifyd/internal/privateserver/pgserver"
)

// writerConns is how many connections the writers share; the same for both.
const writerConns = 16

// bench is what a run has open.
type bench struct {
	options
	pool    *pgxpool.Pool // of the writers, with the server's defaults
	schema  string
	log     *slog.Logger
	private bool
	cleanup []func() error
}

// measure does all that options ask for.
func measure(ctx context.Context, o options) (result, error) {
	b := &bench{
		options: o,
		log:     slog.New(slog.NewTextHandler(o.progress, &slog.HandlerOptions{Level: slog.LevelError})),
		schema:  fmt.Sprintf("notifyd_peers_%08x", rand.Uint32()), //nolint:gosec // tells runs apart, hides nothing
	}
	r, err := b.measure(ctx)
	return r, errors.Join(err, b.close())
}

func (b *bench) measure(ctx context.Context) (result, error) {
	if err := b.open(ctx); err != nil {
		return result{}, err
	}
	r, err := b.describe(ctx)
	if err != nil {
		return result{}, err
	}
	drains, latencies, err := b.variants()
	if err != nil {
		return result{}, err
	}
	for round := range b.rounds {
		for _, i := range order(round, len(drains)) {
			if err := b.drainRound(ctx, &r, drains, i); err != nil {
				return result{}, err
			}
		}
	}
	for round := range b.rounds {
		for _, i := range order(round, len(latencies)) {
			if err := b.latencyRound(ctx, &r, latencies, i); err != nil {
				return result{}, err
			}
		}
	}
	r.compare()
	return r, nil
}

// order lets notifyd, the first of n, run before every second variant of River:
// every other ratio has its figure in it, and its drain is so short that a
// burst of other work on the machine would decide a single one.
func order(round, n int) []int {
	var turns []int
	for i := range n - 1 {
		if i%2 == 0 {
			turns = append(turns, 0)
		}
		turns = append(turns, 1+inTurn(round, i, n-1))
	}
	return turns
}

// inTurn goes backwards in every second round, against whatever drifts.
func inTurn(round, i, n int) int {
	if round%2 == 1 {
		return n - 1 - i
	}
	return i
}

// variants are what is compared; the first of each is notifyd.
func (b *bench) variants() (drains, latencies []variant, err error) {
	ours := variant{
		name: "notifyd", commitOff: true, settings: "defaults: 8 workers, 4 claims; sync_commit off, on its own connections",
		peer: &relayPeer{pool: b.pool, schema: b.schema, log: b.log},
	}
	drains, latencies = []variant{ours}, []variant{ours}
	add := func(to *[]variant, s riverSettings) {
		p, failed := newRiver(b, s)
		err = errors.Join(err, failed)
		*to = append(*to, variant{name: "River", settings: s.String(), commitOff: s.commitOff, peer: p})
	}
	const cooldown, poll = river.FetchCooldownMin, 10 * time.Millisecond
	for _, commitOff := range []bool{false, true} {
		for _, workers := range []int{100, 1000, 2000} {
			add(&drains, riverSettings{workers: workers, cooldown: cooldown, poll: poll, commitOff: commitOff})
		}
		// Those of River's own benchmark.
		add(&drains, riverSettings{workers: 2000, cooldown: 2 * time.Millisecond, poll: 20 * time.Millisecond, commitOff: commitOff})
		add(&latencies, riverSettings{workers: 100, commitOff: commitOff})
		add(&latencies, riverSettings{workers: 100, cooldown: cooldown, poll: poll, commitOff: commitOff})
	}
	return drains, latencies, err
}

// open starts the server and makes both systems' tables.
func (b *bench) open(ctx context.Context) error {
	url := b.databaseURL
	if url == "" {
		server, err := pginstall.Start(ctx, pgserver.Config{Durable: true, Log: b.progress})
		if err != nil {
			return fmt.Errorf("start a private PostgreSQL: %w", err)
		}
		b.private = true
		b.cleanup = append(b.cleanup, func() error { return server.Stop(context.WithoutCancel(ctx)) })
		url = server.URL("")
	}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return fmt.Errorf("database url: %w", err)
	}
	cfg.MaxConns, cfg.MinConns = writerConns, writerConns
	b.pool, err = pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("database url: %w", err)
	}
	b.cleanup = append(b.cleanup, func() error { b.pool.Close(); return nil })
	name := pgx.Identifier{b.schema}.Sanitize()
	if _, err := b.pool.Exec(ctx, "CREATE SCHEMA "+name); err != nil {
		return fmt.Errorf("make a schema: %w", err)
	}
	b.cleanup = append(b.cleanup, func() error {
		_, err := b.pool.Exec(context.WithoutCancel(ctx), "DROP SCHEMA "+name+" CASCADE")
		return err
	})
	if err := migrateNotifyd(ctx, b.pool, b.schema); err != nil {
		return fmt.Errorf("make the tables of notifyd: %w", err)
	}
	if err := migrateRiver(ctx, b); err != nil {
		return fmt.Errorf("make the tables of River: %w", err)
	}
	return nil
}

// close closes everything in reverse order.
func (b *bench) close() error {
	var errs []error
	for _, end := range slices.Backward(b.cleanup) {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}

// describe says what the figures depend on.
func (b *bench) describe(ctx context.Context) (result, error) {
	r := result{
		Events: b.events, LatencyEvents: b.latencyEvents, Rate: b.rate, Rounds: b.rounds,
		River: version("github.com/riverqueue/river"), Go: runtime.Version(), CPUs: runtime.NumCPU(), Private: b.private,
	}
	err := b.pool.QueryRow(ctx, `SELECT current_setting('server_version'), current_setting('synchronous_commit'),
		current_setting('fsync'), current_setting('shared_buffers')`).Scan(&r.Server.Version, &r.Server.SynchronousCommit, &r.Server.Fsync, &r.Server.SharedBuffers)
	if err != nil {
		return r, fmt.Errorf("ask the server for its settings: %w", err)
	}
	return r, nil
}

// version returns the version of a module in this program.
func version(module string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == module {
				return dep.Version
			}
		}
	}
	return "unknown"
}

// clear empties a variant's tables.
func (b *bench) clear(ctx context.Context, v variant) error {
	_, err := b.pool.Exec(ctx, "TRUNCATE "+strings.Join(v.peer.tables().names, ", "))
	return err
}

// calm brings tables and server into the same state before each measurement.
func (b *bench) calm(ctx context.Context, v variant) error {
	for _, table := range v.peer.tables().names {
		if _, err := b.pool.Exec(ctx, "VACUUM (ANALYZE) "+table); err != nil {
			return err
		}
	}
	if b.private { // elsewhere it may not be allowed, and others would feel it
		if _, err := b.pool.Exec(ctx, "CHECKPOINT"); err != nil {
			return err
		}
	}
	runtime.GC()
	return nil
}

func (b *bench) say(format string, args ...any) {
	// A progress line that cannot be written is no reason to fail.
	_, _ = fmt.Fprintf(b.progress, format+"\n", args...)
}
