package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// probes is how many commits of each kind are timed for the cost of a flush.
const probes = 200

// describe prints the machine, the server and the settings that affect the figures.
func (e *env) describe(ctx context.Context) error {
	var version string
	if err := e.pool.QueryRow(ctx, `SELECT current_setting('server_version')`).Scan(&version); err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	where := "the one of --database-url"
	if e.DatabaseURL == "" {
		where = "private, durable"
	}
	e.printf("PostgreSQL %s (%s); this machine has %d cores\n", version, where, runtime.NumCPU())
	rows, err := e.pool.Query(ctx, `SELECT name || '=' || current_setting(name) FROM pg_settings WHERE name = ANY($1) ORDER BY name`, []string{
		"autovacuum", "checkpoint_timeout", "data_checksums", "fsync", "full_page_writes", "max_wal_size",
		"shared_buffers", "synchronous_commit", "wal_sync_method", "wal_compression",
	})
	if err != nil {
		return err
	}
	settings, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	e.printf("settings: %s\n", strings.Join(settings, ", "))
	flushed, unflushed, err := e.probe(ctx)
	if err != nil {
		return fmt.Errorf("time commits: %w", err)
	}
	e.printf("fsync: %.3f ms, measured as the commit of one row with synchronous_commit=on, %.3f ms, less one with off, %.3f ms (medians of %d)\n\n",
		milliseconds(flushed-unflushed), milliseconds(flushed), milliseconds(unflushed), probes)
	return nil
}

// probe times commits of one row, with and without a flush to disk.
func (e *env) probe(ctx context.Context) (flushed, unflushed time.Duration, err error) {
	name := pgx.Identifier{e.prefix + "_probe"}.Sanitize()
	err = e.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) (err error) {
		if _, err := c.Exec(ctx, "CREATE SCHEMA "+name+" CREATE TABLE probe (n int)"); err != nil {
			return err
		}
		defer func() {
			_, derr := c.Exec(context.WithoutCancel(ctx), "RESET synchronous_commit; DROP SCHEMA "+name+" CASCADE")
			err = errors.Join(err, derr)
		}()
		if unflushed, err = timeCommits(ctx, c, "off", name); err != nil {
			return err
		}
		flushed, err = timeCommits(ctx, c, "on", name)
		return err
	})
	return flushed, unflushed, err
}

func timeCommits(ctx context.Context, c *pgxpool.Conn, synchronous, schema string) (time.Duration, error) {
	if _, err := c.Exec(ctx, "SET synchronous_commit = "+synchronous); err != nil {
		return 0, err
	}
	took := make([]time.Duration, probes)
	for i := range took {
		start := time.Now()
		if _, err := c.Exec(ctx, "INSERT INTO "+schema+".probe VALUES (1)"); err != nil {
			return 0, err
		}
		took[i] = time.Since(start)
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// serverCPU returns the CPU time that a private server has used so far, or 0 for another server.
func (e *env) serverCPU(ctx context.Context) (time.Duration, error) {
	if e.DatabaseURL != "" {
		return 0, nil
	}
	var pid int
	if err := e.pool.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		return 0, err
	}
	return cpuOfFamily(parentOf(pid)), nil
}

// walEnd returns the end of the write-ahead log, for [env.walSince].
func (e *env) walEnd(ctx context.Context) (lsn string, err error) {
	err = e.pool.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&lsn)
	return lsn, err
}

// walSince returns how many bytes of write-ahead log were written since the position from.
func (e *env) walSince(ctx context.Context, from string) (bytes float64, err error) {
	err = e.pool.QueryRow(ctx, "SELECT (pg_current_wal_insert_lsn() - $1::pg_lsn)::float8", from).Scan(&bytes)
	return bytes, err
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// cost is what some work has used.
type cost struct {
	wal    float64 // bytes
	rss    int64   // bytes, the peak
	rssHow string  // how the peak was measured
	cpu    split
}

// split is the CPU time of each participant.
type split struct{ postgres, sink, relay time.Duration }

// own returns the CPU time that does not depend on the sink.
func (s split) own() time.Duration { return s.postgres + s.relay }

// meter measures the cost of work. sink is the process of a private sink, or 0. In profiles the label "drain" has the name.
func (e *env) meter(ctx context.Context, name string, sink int, work func(context.Context) error) (c cost, err error) {
	debug.FreeOSMemory()
	if c.rssHow, err = resetPeak(); err != nil {
		return c, err
	}
	from, err := e.walEnd(ctx)
	if err != nil {
		return c, err
	}
	before, err := e.used(ctx, sink)
	if err != nil {
		return c, err
	}

	pprof.Do(ctx, pprof.Labels("drain", name), func(ctx context.Context) { err = work(ctx) })
	if err != nil {
		return c, err
	}

	after, err := e.used(ctx, sink)
	if err != nil {
		return c, err
	}
	c.cpu = split{postgres: after.postgres - before.postgres, sink: after.sink - before.sink, relay: after.relay - before.relay}
	if c.rss, err = peak(); err != nil {
		return c, err
	}
	c.wal, err = e.walSince(ctx, from)
	return c, err
}

// used returns the CPU time used so far by private servers and by this process.
func (e *env) used(ctx context.Context, sink int) (s split, err error) {
	s.relay = ownCPU()
	if sink != 0 {
		s.sink, _ = cpuOf([]int{sink})
	}
	s.postgres, err = e.serverCPU(ctx)
	return s, err
}
