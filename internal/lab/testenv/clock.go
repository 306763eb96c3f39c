package testenv

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
)

// readableMode lets the account of the server read files of a test.
const readableMode = 0o755

// ClockPostgres is [OwnPostgres] with a clock that the test sets: set takes its
// offset from the clock of the machine. Measured durations stay correct, as on a
// machine whose clock is adjusted. It needs libfaketime; without it, the test is
// skipped, or fails if [EnvRequire] lists "faketime".
//
// In a signal handler the server sees the clock of the machine. So with an offset
// below 0, idle_session_timeout and its like may end sessions that are not idle.
func ClockPostgres(tb testing.TB, settings map[string]string) (server *pgserver.Server, set func(offset time.Duration)) {
	tb.Helper()
	library, err := findFaketime()
	require(tb, "faketime", err)

	binDir, err := pgserver.Find(tb.Context())
	orSkip(tb, "postgres", err)

	dir, err := os.MkdirTemp("/tmp", "notifyd-clock-") //nolint:usetesting // the directory of a test is closed to other accounts
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })

	clock := filepath.Join(dir, "clock")
	set = func(offset time.Duration) {
		tb.Helper()
		text := fmt.Appendf(nil, "%+d\n", int64(offset/time.Second))
		// Atomically, because the server keeps reading it.
		if err := errors.Join(os.WriteFile(clock+".new", text, readableMode), os.Rename(clock+".new", clock)); err != nil {
			tb.Fatal(err)
		}
	}
	set(0)

	script := "#!/bin/sh\n" +
		"export LD_PRELOAD='" + library + "' FAKETIME_TIMESTAMP_FILE='" + clock + "'\n" +
		"export FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1 DONT_FAKE_MONOTONIC=1\n" +
		"exec '" + filepath.Join(binDir, "postgres") + "' \"$@\"\n"
	err = errors.Join(
		os.Chmod(dir, readableMode),
		os.WriteFile(filepath.Join(dir, "postgres"), []byte(script), readableMode),
		os.Symlink(filepath.Join(binDir, "initdb"), filepath.Join(dir, "initdb")))
	if err != nil {
		tb.Fatal(err)
	}

	server, err = startPostgres(tb.Context(), pgserver.Config{BinDir: dir, Settings: settings})
	orSkip(tb, "postgres", err)
	stopAfter(tb, "PostgreSQL", server.Stop)
	return server, set
}

// findFaketime returns the path of the library, where Debian and others install it.
func findFaketime() (string, error) {
	places := []string{
		"/usr/lib/*/faketime/libfaketime.so.1",
		"/usr/lib*/faketime/libfaketime.so.1",
		"/usr/local/lib/faketime/libfaketime.so.1",
	}

	for _, place := range places {
		if found, err := filepath.Glob(place); err == nil && len(found) > 0 {
			return found[0], nil
		}
	}

	return "", errors.New("no libfaketime in " + strings.Join(places, ", ") + " (Debian: apt-get install faketime)")
}
