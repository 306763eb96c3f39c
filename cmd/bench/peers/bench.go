package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"runtime"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/internal/lab/privateserver/pginstall"
	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
)

// bench has the open resources of a run.
type bench struct {
	options
	url      *url.URL  // of the server
	admin    *pgx.Conn // makes and drops databases
	prefix   string    // of their names
	node     *node     // nil until it is needed
	variants []variant // notifyd's first
	ours     int       // how many are notifyd's
	log      *slog.Logger
	private  bool
	cleanup  []func() error
}

// measure measures everything that the options request.
func measure(ctx context.Context, o options) (result, error) {
	b := &bench{
		options: o,
		log:     slog.New(slog.NewTextHandler(o.progress, &slog.HandlerOptions{Level: slog.LevelError})),
		prefix:  fmt.Sprintf("notifyd_peers_%08x_", rand.Uint32()), //nolint:gosec // tells runs apart, hides nothing
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
	for _, s := range systems() {
		if len(b.only) > 0 && !slices.Contains(b.only, s.name) {
			continue
		}
		if err := b.enter(ctx, &r, s); err != nil {
			return result{}, err
		}
	}
	for _, m := range []struct {
		of  measures
		one func(context.Context, variant, *systemResult) error
	}{{drains, b.drainRound}, {latencies, b.latencyRound}, {inserts, b.writersRound}} {
		if err := b.inTurns(ctx, &r, m.of, m.one); err != nil {
			return result{}, err
		}
	}
	r.compare(b.ours)
	return r, nil
}

// inTurns measures all variants, in all rounds.
func (b *bench) inTurns(ctx context.Context, r *result, of measures, one func(context.Context, variant, *systemResult) error) error {
	var ours, others []int
	for i, v := range b.variants {
		switch {
		case v.measured&of == 0:
		case i < b.ours:
			ours = append(ours, i)
		default:
			others = append(others, i)
		}
	}
	for round := range b.rounds {
		for _, i := range order(round, ours, others) {
			v := b.variants[i]
			if err := one(ctx, v, &r.Systems[i]); err != nil {
				return fmt.Errorf("%s (%s): %w", v.name, v.settings, err)
			}
			// No connections of another system are open during a measurement.
			v.db.pool.Reset()
		}
	}
	return nil
}

// oursEvery is how many variants of other systems run between two turns of notifyd's.
const oursEvery = 4

// order inserts notifyd's variants before every fourth of the others. Every ratio contains their figures, and their
// drains are short: a burst of other work on the machine would distort a single one. Every second round runs backwards,
// against drift on the machine.
func order(round int, ours, others []int) []int {
	if round%2 == 1 {
		ours, others = slices.Clone(ours), slices.Clone(others)
		slices.Reverse(ours)
		slices.Reverse(others)
	}
	turns := slices.Clone(ours)
	for i, other := range others {
		if i > 0 && i%oursEvery == 0 {
			turns = append(turns, ours...)
		}
		turns = append(turns, other)
	}
	return turns
}

// open starts the server.
func (b *bench) open(ctx context.Context) (err error) {
	text := b.databaseURL
	if text == "" {
		// A pool of 16 writers, two dozen workers, and connections that the previous pool has not closed yet.
		server, err := pginstall.Start(ctx, pgserver.Config{Durable: true, Log: b.progress, Settings: map[string]string{"max_connections": "200"}})
		if err != nil {
			return fmt.Errorf("start a private PostgreSQL: %w", err)
		}
		b.private = true
		b.cleanup = append(b.cleanup, func() error { return server.Stop(context.WithoutCancel(ctx)) })
		text = server.URL("")
	}
	if b.url, err = url.Parse(text); err != nil || b.url.Scheme == "" {
		return fmt.Errorf("%w: --database-url must look like postgres://user@host:port/database", errUsage)
	}
	if b.admin, err = pgx.Connect(ctx, text); err != nil {
		return fmt.Errorf("database url: %w", err)
	}
	b.cleanup = append(b.cleanup, func() error { return b.admin.Close(context.WithoutCancel(ctx)) })
	return nil
}

// database creates a database for a system.
func (b *bench) database(ctx context.Context, system string) (database, error) {
	name := b.prefix + strings.ReplaceAll(system, "-", "_")
	if _, err := b.admin.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return database{}, err
	}
	b.cleanup = append(b.cleanup, func() error {
		_, err := b.admin.Exec(context.WithoutCancel(ctx), "DROP DATABASE "+name+" WITH (FORCE)")
		return err
	})
	u := *b.url
	u.Path = "/" + name
	cfg, err := pgxpool.ParseConfig(u.String())
	if err != nil {
		return database{}, err
	}
	cfg.MaxConns = int32(b.writers) //nolint:gosec // a number of connections
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return database{}, err
	}
	b.cleanup = append(b.cleanup, func() error { pool.Close(); return nil })
	// The foreign transactions write into this table.
	_, err = pool.Exec(ctx, "CREATE TABLE "+bystander+" (n int)")
	return database{url: u.String(), pool: pool}, err
}

// close closes everything in reverse order.
func (b *bench) close() error {
	var errs []error
	for _, end := range slices.Backward(b.cleanup) {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}

// describe returns the conditions of the figures: versions, sizes, the machine.
func (b *bench) describe(ctx context.Context) (result, error) {
	r := result{
		Events: b.events, LatencyEvents: b.latencyEvents, Rate: b.rate, Writers: b.writers, Rounds: b.rounds,
		Versions: make(map[string]string), Go: runtime.Version(), CPUs: runtime.NumCPU(), Private: b.private,
	}
	err := b.admin.QueryRow(ctx, `SELECT current_setting('server_version'), current_setting('synchronous_commit'),
		current_setting('fsync'), current_setting('shared_buffers')`).Scan(&r.Server.Version, &r.Server.SynchronousCommit, &r.Server.Fsync, &r.Server.SharedBuffers)
	if err != nil {
		return r, fmt.Errorf("ask the server for its settings: %w", err)
	}
	return r, nil
}

// clear empties a variant's tables.
func (b *bench) clear(ctx context.Context, v variant) error {
	_, err := v.db.pool.Exec(ctx, "TRUNCATE "+strings.Join(v.peer.tables().names, ", "))
	return err
}

// calm resets tables and server to the same state before each measurement.
func (b *bench) calm(ctx context.Context, v variant) error {
	for _, table := range v.peer.tables().names {
		if _, err := v.db.pool.Exec(ctx, "VACUUM (ANALYZE) "+table); err != nil {
			return err
		}
	}
	if b.private { // on another server it may be forbidden, and would disturb other users
		if _, err := v.db.pool.Exec(ctx, "CHECKPOINT"); err != nil {
			return err
		}
	}
	runtime.GC()
	return nil
}

func (b *bench) say(format string, args ...any) {
	// A failed write of a progress line does not fail the run.
	_, _ = fmt.Fprintf(b.progress, format+"\n", args...)
}
