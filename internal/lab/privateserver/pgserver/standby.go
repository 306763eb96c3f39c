package pgserver

import (
	"context"
	"fmt"
	"maps"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/privateserver"
)

// promoteWithin bounds how long a promotion may take, in seconds.
const promoteWithin = 60

// StartStandby starts a server that follows primary by streaming replication. It stops primary for a moment to copy its
// data, because some packages of PostgreSQL lack pg_basebackup. The standby has the settings of primary, and cfg adds to
// them. The caller calls [Server.Stop].
func StartStandby(ctx context.Context, primary *Server, cfg Config) (*Server, error) {
	cfg.BinDir = primary.binDir
	return start(ctx, cfg, func(ctx context.Context, s *privateserver.Server) error { return follow(ctx, s, primary, cfg) })
}

// follow fills the directory with a copy of primary, configured as its standby.
func follow(ctx context.Context, s *privateserver.Server, primary *Server, cfg Config) error {
	if err := primary.Halt(ctx, Fast); err != nil {
		return fmt.Errorf("halt the primary: %w", err)
	}

	if out, err := s.Command(ctx, "cp", "-Rp", dataDir(primary.Server)+"/.", dataDir(s)).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the primary: %w: %s", err, privateserver.Tail(out))
	}

	if err := primary.Start(ctx); err != nil {
		return fmt.Errorf("start the primary again: %w", err)
	}

	if _, err := s.WriteFile("data/standby.signal", nil); err != nil {
		return fmt.Errorf("create a standby: %w", err)
	}

	settings := map[string]string{"primary_conninfo": fmt.Sprintf("host=127.0.0.1 port=%d user=%s", primary.Port(), superuser)}
	maps.Copy(settings, cfg.Settings)
	cfg.Settings = settings

	return configure(s, cfg)
}

// Promote turns a standby into a primary, and returns when it accepts writes.
func (s *Server) Promote(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.URL(""))
	if err != nil {
		return fmt.Errorf("promote: %w", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // the answer is complete

	var done bool
	if err := conn.QueryRow(ctx, `SELECT pg_promote(true, $1)`, promoteWithin).Scan(&done); err != nil {
		return fmt.Errorf("promote: %w", err)
	}

	if !done {
		return fmt.Errorf("promote: not done within %d s", promoteWithin)
	}
	return nil
}
