// Package testenv provides the real servers that tests run against.
//
// A package of integration tests calls [Main] from its TestMain; its tests then
// request the servers they need:
//
//	func TestMain(m *testing.M) { testenv.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		pool := connect(t, testenv.Database(t))
//		...
//	}
//
// If a server is unavailable, the test is skipped, so that a contributor can run
// the others; with [EnvRequire] set, as in CI, it fails.
package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/notifyd/notifyd/internal/lab/freeport"
	"github.com/notifyd/notifyd/internal/lab/privateserver"
)

// EnvRequire names the environment variable that lists, separated by commas, the
// required servers: "postgres" for example, or "all".
const EnvRequire = "NOTIFYD_TEST_REQUIRE"

// cleanupWithin bounds the cleanup of a test: dropping a database or stopping a
// server takes well under a second on an idle machine.
const cleanupWithin = time.Minute

// gcPercent makes the garbage collector of a test program run less often: it takes a tenth of its CPU time by default.
const gcPercent = 400

// leavesWithin is how long a goroutine may take to end after the last test.
const leavesWithin = 30 * time.Second

// Main runs the tests of a package, ends the shared servers, checks that no
// goroutine is left, and exits. opts are for goroutines that are known to stay.
func Main(m *testing.M, opts ...goleak.Option) {
	debug.SetGCPercent(gcPercent)
	code := m.Run()

	ctx := context.Background() //nolint:forbidigo // a TestMain has no context
	if err := shared.stop(ctx); err != nil {
		code = complain(code, err)
	}

	// A failed test leaves goroutines behind that would only distract from it.
	if code == 0 {
		if err := findLeaks(opts...); err != nil {
			code = complain(code, err)
		}
	}

	os.Exit(code)
}

// findLeaks looks for goroutines that are left. goleak gives them half a second
// to end; on a busy machine they may need more.
func findLeaks(opts ...goleak.Option) (err error) {
	for end := time.Now().Add(leavesWithin); ; {
		err = goleak.Find(opts...)
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

// stoppers end the shared servers that were started, the last one first.
type stoppers struct {
	mu  sync.Mutex
	all []func(context.Context) error
}

// shared is state of the package because the first test that needs a server
// starts it, and [Main] stops it.
var shared stoppers //nolint:gochecknoglobals // see above

// stopLater makes Main call stop after the last test.
func (s *stoppers) stopLater(stop func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, stop)
}

func (s *stoppers) stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, cleanupWithin)
	defer cancel()

	var errs []error
	for _, stop := range slices.Backward(s.all) {
		errs = append(errs, stop(ctx))
	}

	s.all = nil
	return errors.Join(errs...)
}

// complain prints an error after the last test, and returns the exit code.
func complain(code int, err error) int {
	fmt.Fprintln(os.Stderr, "testenv:", err)
	return max(code, 1)
}

// FreePort returns a port of 127.0.0.1 that is free at the moment.
func FreePort(tb testing.TB) int {
	tb.Helper()
	port, err := freeport.Pick(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return port
}

// Need ends the test if err says that name is unavailable: it fails if
// [EnvRequire] lists the name, else it is skipped. It is for tools and parts of
// servers that a test requires.
func Need(tb testing.TB, name string, err error) {
	tb.Helper()
	require(tb, name, err)
}

// require ends the test if err says that the server called name is unavailable:
// it fails if [EnvRequire] lists the server, else it is skipped.
func require(tb testing.TB, name string, err error) {
	tb.Helper()
	if err == nil {
		return
	}

	if required(os.Getenv(EnvRequire), name) {
		tb.Fatalf("%s is required (%s): %v", name, EnvRequire, err)
	}
	tb.Skipf("no %s for this test: %v", name, err)
}

// orSkip requires a private server. A server that is installed and does not start is a
// failure even without [EnvRequire].
func orSkip(tb testing.TB, name string, err error) {
	tb.Helper()
	if err != nil && !errors.Is(err, privateserver.ErrNotFound) {
		tb.Fatal(err)
	}
	require(tb, name, err)
}

// stopAfter stops the server called name at the end of the test.
func stopAfter(tb testing.TB, name string, stop func(context.Context) error) {
	tb.Helper()
	tb.Cleanup(func() {
		ctx, cancel := afterwards(tb)
		defer cancel()
		if err := stop(ctx); err != nil {
			tb.Errorf("stop the %s of the test: %v", name, err)
		}
	})
}

func required(list, name string) bool {
	names := strings.Split(list, ",")
	return slices.Contains(names, "all") || slices.Contains(names, name)
}

// afterwards returns the context for the cleanup of tb, because its own is done then.
func afterwards(tb testing.TB) (context.Context, context.CancelFunc) {
	tb.Helper()
	return context.WithTimeout(context.WithoutCancel(tb.Context()), cleanupWithin)
}
