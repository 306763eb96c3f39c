package pgserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/jackc/pgx/v5"
)

// promoteWithin bounds how long a promotion may take, in seconds.
const promoteWithin = 60

// StartStandby starts a server that follows primary by streaming replication.
// Its data is a copy for which primary goes down for a moment, so that it takes
// no program which some packages of PostgreSQL lack. The settings are those of
// primary, with those of cfg added. It is stopped like any other.
func StartStandby(ctx context.Context, primary *Server, cfg Config) (*Server, error) {
	cfg.BinDir = primary.binDir
	return launchServer(ctx, cfg, func(s *Server) error { return s.follow(ctx, primary, cfg) })
}

// follow fills the directory with a copy of primary that follows it.
func (s *Server) follow(ctx context.Context, primary *Server, cfg Config) error {
	primary.mu.Lock()
	defer primary.mu.Unlock()
	if err := primary.halt(ctx, Fast); err != nil {
		return fmt.Errorf("halt the primary: %w", err)
	}
	cmd := exec.CommandContext(ctx, "cp", "-Rp", primary.dataDir()+"/.", s.dataDir())
	cmd.SysProcAttr, cmd.Dir = s.account.procAttr(), s.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("copy the primary: %w: %s", err, tail(out))
	}
	if err := primary.startAgain(ctx); err != nil {
		return fmt.Errorf("start the primary again: %w", err)
	}
	signal := filepath.Join(s.dataDir(), "standby.signal")
	if err := errors.Join(os.WriteFile(signal, nil, 0o600), s.account.own(signal)); err != nil {
		return fmt.Errorf("make a standby: %w", err)
	}
	settings := map[string]string{"primary_conninfo": fmt.Sprintf("host=127.0.0.1 port=%d user=%s", primary.port, superuser)}
	maps.Copy(settings, cfg.Settings)
	cfg.Settings = settings
	return s.configure(cfg)
}

// Promote makes a primary of a standby, and returns when it takes writes.
func (s *Server) Promote(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.URL(""))
	if err != nil {
		return fmt.Errorf("promote: %w", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // the answer counts, not the farewell
	var done bool
	if err := conn.QueryRow(ctx, `SELECT pg_promote(true, $1)`, promoteWithin).Scan(&done); err != nil {
		return fmt.Errorf("promote: %w", err)
	}
	if !done {
		return fmt.Errorf("promote: not done within %d s", promoteWithin)
	}
	return nil
}
