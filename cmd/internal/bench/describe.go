package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// probes is how many commits of each kind are timed for the cost of a flush.
const probes = 200

// describe prints the machine, the server and the settings that affect the figures.
func (e *Env) describe(ctx context.Context) error {
	var version string
	if err := e.Pool.QueryRow(ctx, `SELECT current_setting('server_version')`).Scan(&version); err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	where := "the one of --database-url"
	if e.Private() {
		where = "private, durable"
	}
	e.Printf("PostgreSQL %s (%s); this machine has %d cores\n", version, where, runtime.NumCPU())
	rows, err := e.Pool.Query(ctx, `SELECT name || '=' || current_setting(name) FROM pg_settings WHERE name = ANY($1) ORDER BY name`, []string{
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
	e.Printf("settings: %s\n", strings.Join(settings, ", "))
	flushed, unflushed, err := e.probe(ctx)
	if err != nil {
		return fmt.Errorf("time commits: %w", err)
	}
	e.Printf("fsync: %.3f ms, measured as the commit of one row with synchronous_commit=on, %.3f ms, less one with off, %.3f ms (medians of %d)\n\n",
		milliseconds(flushed-unflushed), milliseconds(flushed), milliseconds(unflushed), probes)
	return nil
}

// probe times commits of one row, with and without a flush to disk.
func (e *Env) probe(ctx context.Context) (flushed, unflushed time.Duration, err error) {
	name := pgx.Identifier{e.Prefix + "_probe"}.Sanitize()
	err = e.Pool.AcquireFunc(ctx, func(c *pgxpool.Conn) (err error) {
		if _, err := c.Exec(ctx, "CREATE SCHEMA "+name+" CREATE TABLE probe (n int)"); err != nil {
			return err
		}
		defer func() {
			_, derr := c.Exec(context.WithoutCancel(ctx), "RESET synchronous_commit; DROP SCHEMA "+name+" CASCADE")
			err = errors.Join(err, derr)
		}()
		unflushed, err = timeCommits(ctx, c, "off", name)
		if err != nil {
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

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
