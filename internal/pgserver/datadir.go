package pgserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxSocketDir is how long the path of the socket's directory may be: a socket
// address holds 104 bytes on macOS (108 on Linux), and "/.s.PGSQL.65535.lock"
// and the final zero have to fit as well.
const maxSocketDir = 104 - 21

// makeDir makes the server's directory: the caller's own, which must be empty,
// or a temporary one.
func makeDir(dir string, acc account) (string, error) {
	made, err := makeTop(dir, acc)
	if err != nil {
		return "", fmt.Errorf("directory for PostgreSQL: %w", err)
	}
	for _, sub := range []string{"data", "socket"} {
		path := filepath.Join(made, sub)
		if err := os.Mkdir(path, 0o700); err != nil {
			return "", errors.Join(fmt.Errorf("directory for PostgreSQL: %w", err), os.RemoveAll(made))
		}
		if err := acc.own(path); err != nil {
			return "", errors.Join(fmt.Errorf("directory for PostgreSQL: %w", err), os.RemoveAll(made))
		}
	}
	return made, nil
}

func makeTop(dir string, acc account) (string, error) {
	if dir == "" {
		base := os.TempDir()
		if acc.canEnter(base) != nil {
			base = "/tmp" // root's own TMPDIR is often closed to others
		}
		dir, err := os.MkdirTemp(base, "notifyd-pg-")
		if err != nil {
			return "", err
		}
		return dir, os.Chmod(dir, acc.topMode())
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, acc.topMode()); err != nil {
		return "", err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	if len(entries) > 0 {
		return "", fmt.Errorf("%s is not empty", dir)
	}
	if err := acc.canEnter(dir); err != nil {
		return "", errors.Join(err, os.Remove(dir))
	}
	return dir, nil
}

// initdb makes the cluster and its configuration.
func (s *Server) initdb(ctx context.Context, cfg Config) error {
	progress(cfg.Log, "creating a private PostgreSQL in %s", s.dir)
	args := []string{
		"-D", s.dataDir(), "-U", superuser, "-E", "UTF8",
		"--auth=trust", "--locale=C", "--no-instructions",
	}
	if !cfg.Durable {
		args = append(args, "--no-sync")
	}
	if out, err := s.command(ctx, "initdb", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, tail(out))
	}
	return s.configure(cfg)
}

// configure adds the settings to the configuration.
func (s *Server) configure(cfg Config) error {
	conf, err := s.settings(cfg)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(s.dataDir(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("configure PostgreSQL: %w", err)
	}
	_, err = f.WriteString(conf)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("configure PostgreSQL: %w", err)
	}
	return nil
}

// settings returns the lines for postgresql.conf, ours before the caller's, so
// that his win. They are not on the command line because ALTER SYSTEM could not
// override them there.
func (s *Server) settings(cfg Config) (string, error) {
	ours := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": s.socketDir(),
	}
	if len(s.socketDir()) > maxSocketDir {
		ours["unix_socket_directories"] = ""
	}
	if !cfg.Durable {
		ours["fsync"] = "off"
		// In the data directory, where a killed server's leftovers go with it.
		ours["dynamic_shared_memory_type"] = "mmap"
	}
	quote := strings.NewReplacer(`\`, `\\`, `'`, `''`)
	var b strings.Builder
	for _, set := range []map[string]string{ours, cfg.Settings} {
		for _, name := range slices.Sorted(maps.Keys(set)) {
			if name == "" || strings.ContainsFunc(name, notInName) {
				return "", fmt.Errorf("setting %q is no name of a PostgreSQL parameter", name)
			}
			if strings.ContainsAny(set[name], "\n\r\x00") {
				return "", fmt.Errorf("setting %s: a value cannot span lines", name)
			}
			fmt.Fprintf(&b, "%s = '%s'\n", name, quote.Replace(set[name]))
		}
	}
	return b.String(), nil
}

func notInName(r rune) bool {
	return r != '_' && r != '.' && (r < 'a' || r > 'z') && (r < '0' || r > '9')
}
