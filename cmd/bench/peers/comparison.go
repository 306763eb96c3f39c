package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"runtime"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/cmd/internal/bench"
)

// comparison has the open resources of a run.
type comparison struct {
	*bench.Env
	*peers
	node   *node // nil until it is needed
	log    *slog.Logger
	ours   []*variant // notifyd's
	others []*variant
}

// Run implements [bench.Experiment].
func (x *peers) Run(ctx context.Context, e *bench.Env) (*bench.Result, error) {
	c := &comparison{Env: e, peers: x, log: slog.New(slog.NewTextHandler(e.Out, &slog.HandlerOptions{Level: slog.LevelError}))}
	r := &bench.Result{Upright: true}
	r.Say("median of %d round(s); drain of %d events; latencies in ms at %d/s, from COMMIT to the handler, \"behind\" while a foreign\n"+
		"write transaction and an old snapshot are open; %d writers; sync_commit is that of the systems' own connections", x.rounds, x.events, x.rate, x.writers)
	for _, s := range systems() {
		if len(x.only) > 0 && !slices.Contains(x.only, s.name) {
			continue
		}
		if err := c.enter(ctx, r, s); err != nil {
			return nil, err
		}
	}
	for _, m := range []struct {
		of  measures
		one func(context.Context, *variant) error
	}{{drains, c.drain}, {latencies, c.latencies}, {inserts, c.writeRates}} {
		if err := c.inTurns(ctx, m.of, m.one); err != nil {
			return nil, err
		}
	}
	c.report(r)
	return r, nil
}

// report fills a row for each variant, with the medians of its rounds.
func (c *comparison) report(r *bench.Result) {
	for _, v := range slices.Concat(c.ours, c.others) {
		row := r.Column(v.name + ", " + v.settings)
		for _, f := range figures() {
			values := v.measured[f.name]
			if len(values) > 0 {
				row.Set(f.name, bench.Median(values), f.decimals)
			}
		}
		mine := row.Figures[drainRate]
		for _, our := range c.ours {
			if mine > 0 {
				row.Set(strings.TrimPrefix(our.name, "notifyd ")+" / it", bench.Ratio(bench.Median(our.measured[drainRate]), mine), 2)
			}
		}
		r.Count(bench.Faults{Duplicates: v.repeats})
	}
	r.Note("duplicates are calls of the handler beyond one per event")
}

// enter creates a system's tables. It skips systems that this machine cannot run, unless --require is set.
func (c *comparison) enter(ctx context.Context, r *bench.Result, s system) error {
	if s.npm != "" && c.node == nil {
		n, err := installNode(ctx, c.Out)
		if errors.Is(err, errNoNode) && !c.require {
			r.Say("left out: %s: %v", s.name, err)
			return nil
		}
		if err != nil {
			return fmt.Errorf("install %s: %w", s.name, err)
		}
		c.node = &n
		r.Say("node %s", n.version)
	}
	db, err := c.database(ctx, s.name)
	if err != nil {
		return fmt.Errorf("make a database for %s: %w", s.name, err)
	}
	variants, err := s.open(ctx, c, db)
	if err != nil {
		return fmt.Errorf("make the tables of %s: %w", s.name, err)
	}
	version, err := s.version(c.node)
	if err != nil {
		return fmt.Errorf("version of %s: %w", s.name, err)
	}

	r.Say("%s %s", s.name, version)
	for _, v := range variants {
		v.db = db
		v.measured = make(map[string][]float64)
	}
	if s.npm == "" && s.module == "" {
		c.ours = append(c.ours, variants...)
	} else {
		c.others = append(c.others, variants...)
	}
	return nil
}

// database creates a database for a system.
func (c *comparison) database(ctx context.Context, system string) (database, error) {
	name := c.Prefix + "_" + strings.ReplaceAll(system, "-", "_")
	if _, err := c.Pool.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return database{}, err
	}
	c.Cleanup(func(ctx context.Context) error {
		_, err := c.Pool.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
		return err
	})

	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme == "" {
		return database{}, errors.New("--database-url must look like postgres://user@host:port/database")
	}
	u.Path = "/" + name
	cfg, err := pgxpool.ParseConfig(u.String())
	if err != nil {
		return database{}, err
	}
	cfg.MaxConns = int32(c.writers) //nolint:gosec // a number of connections
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return database{}, err
	}
	c.Cleanup(func(context.Context) error { pool.Close(); return nil })
	// The foreign transactions write into this table.
	_, err = pool.Exec(ctx, "CREATE TABLE "+bystander+" (n int)")
	return database{url: u.String(), pool: pool}, err
}

// inTurns measures all variants, in all rounds.
func (c *comparison) inTurns(ctx context.Context, of measures, one func(context.Context, *variant) error) error {
	other := func(v *variant) bool { return v.measures&of == 0 }
	ours := slices.DeleteFunc(slices.Clone(c.ours), other)
	others := slices.DeleteFunc(slices.Clone(c.others), other)
	for round := range c.rounds {
		for _, v := range order(round, ours, others) {
			if err := one(ctx, v); err != nil {
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
func order[V any](round int, ours, others []V) []V {
	if round%2 == 1 {
		ours = slices.Clone(ours)
		others = slices.Clone(others)
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

// clear empties a variant's tables, and resets tables and server to the same state before each measurement. preload fills
// the tables.
func (c *comparison) clear(ctx context.Context, v *variant, preload int) error {
	names := v.peer.tables().names
	if _, err := v.db.pool.Exec(ctx, "TRUNCATE "+strings.Join(names, ", ")); err != nil {
		return err
	}
	if err := v.peer.preload(ctx, preload); err != nil {
		return err
	}
	for _, table := range names {
		if _, err := v.db.pool.Exec(ctx, "VACUUM (ANALYZE) "+table); err != nil {
			return err
		}
	}
	if c.Private() { // on another server it may be forbidden, and would disturb other users
		if _, err := v.db.pool.Exec(ctx, "CHECKPOINT"); err != nil {
			return err
		}
	}
	runtime.GC()
	return nil
}
