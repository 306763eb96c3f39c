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

	"github.com/notifyd/notifyd/internal/lab/privateserver"
)

// maxSocketDir bounds the path of the socket's directory, in bytes. A socket address has 104 bytes on macOS (108 on
// Linux), which include "/.s.PGSQL.65535.lock" and the final zero.
const maxSocketDir = 104 - 21

// initdb creates the cluster and its configuration.
func initdb(ctx context.Context, s *privateserver.Server, cfg Config) error {
	if cfg.Log != nil {
		// A lost progress line is not a reason to fail.
		_, _ = fmt.Fprintf(cfg.Log, "creating a private PostgreSQL in %s\n", s.Dir())
	}

	args := []string{
		"-D", dataDir(s), "-U", superuser, "-E", "UTF8",
		"--auth=trust", "--locale=C", "--no-instructions",
	}
	if !cfg.Durable {
		args = append(args, "--no-sync")
	}

	if out, err := s.Command(ctx, filepath.Join(cfg.BinDir, "initdb"), args...).CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, privateserver.Tail(out))
	}

	return configure(s, cfg)
}

// configure adds the settings to the configuration.
func configure(s *privateserver.Server, cfg Config) error {
	conf, err := settings(cfg, socketDir(s))
	if err != nil {
		return err
	}

	f, err := os.OpenFile(filepath.Join(dataDir(s), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("configure PostgreSQL: %w", err)
	}

	_, err = f.WriteString(conf)
	err = errors.Join(err, f.Close())
	if err != nil {
		return fmt.Errorf("configure PostgreSQL: %w", err)
	}
	return nil
}

// settings returns the lines for postgresql.conf; those of cfg replace the usual ones.
// On the command line, ALTER SYSTEM could not override them.
func settings(cfg Config, socketDir string) (string, error) {
	usual := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": socketDir,
	}
	if len(socketDir) > maxSocketDir {
		usual["unix_socket_directories"] = ""
	}

	if !cfg.Durable {
		usual["fsync"] = "off"
		// In the data directory, so that leftovers of a killed server go with it.
		usual["dynamic_shared_memory_type"] = "mmap"
	}

	quote := strings.NewReplacer(`\`, `\\`, `'`, `''`)
	var b strings.Builder
	for _, set := range []map[string]string{usual, cfg.Settings} {
		for _, name := range slices.Sorted(maps.Keys(set)) {
			if name == "" || strings.ContainsFunc(name, notInName) {
				return "", fmt.Errorf("setting %q is not the name of a PostgreSQL parameter", name)
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
	switch {
	case r == '_', r == '.',
		r >= 'a' && r <= 'z',
		r >= '0' && r <= '9':
		return false
	default:
		return true
	}
}
