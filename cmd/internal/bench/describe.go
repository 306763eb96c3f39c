package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/store"
)

// probes is how many commits of each kind are timed for the cost of a flush.
const probes = 200

// describe prints the machine, the server and the settings that affect the figures.
func (e *Env) describe(ctx context.Context) error {
	var version, settings string
	err := e.Pool.QueryRow(ctx, `SELECT current_setting('server_version'), string_agg(name || '=' || current_setting(name), ', ' ORDER BY name)
		FROM pg_settings WHERE name = ANY($1)`, []string{
		"autovacuum", "autovacuum_naptime", "checkpoint_timeout", "data_checksums", "fsync", "full_page_writes", "max_wal_size",
		"shared_buffers", "synchronous_commit", "wal_sync_method", "wal_compression",
	}).Scan(&version, &settings)
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	where := "the one of --database-url"
	if e.Private() {
		where = "private, durable"
	}
	e.Printf("PostgreSQL %s (%s); this machine has %d cores\nsettings: %s\n", version, where, runtime.NumCPU(), settings)

	conn, err := e.connect(ctx)
	if err != nil {
		return err
	}
	defer store.Close(ctx, conn)
	off, err := timeCommits(ctx, conn, e.Prefix+"_probe", "off")
	if err != nil {
		return fmt.Errorf("time commits: %w", err)
	}
	on, err := timeCommits(ctx, conn, e.Prefix+"_probe", "on")
	e.Printf("fsync: %.3f ms, measured as the commit of one row with synchronous_commit=on, %.3f ms, less one with off, %.3f ms (medians of %d)\n\n",
		milliseconds(on-off), milliseconds(on), milliseconds(off), probes)
	return err
}

// timeCommits returns the median of commits of one row, in a schema that does not outlive it.
func timeCommits(ctx context.Context, conn *pgx.Conn, schema, synchronous string) (median time.Duration, err error) {
	_, err = conn.Exec(ctx, "SET synchronous_commit = "+synchronous+"; CREATE SCHEMA "+schema+" CREATE TABLE probe (n int)")
	if err != nil {
		return 0, err
	}
	defer func() {
		_, dropErr := conn.Exec(context.WithoutCancel(ctx), "DROP SCHEMA "+schema+" CASCADE")
		err = errors.Join(err, dropErr)
	}()
	took := make([]time.Duration, probes)
	for i := range took {
		began := time.Now()
		if _, err := conn.Exec(ctx, "INSERT INTO "+schema+".probe VALUES (1)"); err != nil {
			return 0, err
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return Percentile(took, 0.5), nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
