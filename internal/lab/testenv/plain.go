package testenv

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"sync"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/privateserver"
)

// EnvRedisURL names the environment variable with the URL of the shared Redis,
// redis:// or rediss://.
const EnvRedisURL = "NOTIFYD_TEST_REDIS_URL"

// EnvNATSURL names the environment variable with the URL of the shared NATS
// server with JetStream, nats:// or tls://.
const EnvNATSURL = "NOTIFYD_TEST_NATS_URL"

// sharedPlain is one server for all tests of a test binary.
type sharedPlain struct {
	mu  sync.Mutex
	url string
	err error // why the start failed; it is tried once
}

// redis and nats are state of the package for the same reason as postgres.
var (
	redis sharedPlain //nolint:gochecknoglobals // see above
	nats  sharedPlain //nolint:gochecknoglobals // see above
)

// Place is a shared server, and a name in it for one test.
type Place struct {
	// URL is the URL of the server.
	URL string
	// Name is the prefix of the test's keys, streams and subjects: letters, digits and underscores.
	Name string
}

// Redis returns the Redis that all tests of this binary share: the one of
// [EnvRedisURL], or a private one that [Main] ends. The data of a test stays in
// it.
func Redis(tb testing.TB) Place {
	tb.Helper()
	u, err := redis.get(tb.Context(), EnvRedisURL, privateserver.Redis(), "redis")
	orSkip(tb, "redis", err)
	return Place{URL: u, Name: databaseName(tb.Name())}
}

// NATS returns the NATS server with JetStream that all tests of this binary
// share: the one of [EnvNATSURL], or a private one that [Main] ends. The data of
// a test stays in it.
func NATS(tb testing.TB) Place {
	tb.Helper()
	u, err := nats.get(tb.Context(), EnvNATSURL, privateserver.NATS(""), "nats")
	orSkip(tb, "nats", err)
	return Place{URL: u, Name: databaseName(tb.Name())}
}

// OwnRedis starts a Redis for this test alone, which may kill or freeze it. args
// are further options for its command line. The end of the test stops it.
func OwnRedis(tb testing.TB, args ...string) *privateserver.Server {
	tb.Helper()
	return OwnServer(tb, "redis", privateserver.Redis(args...))
}

// OwnSentinel is [OwnRedis] for a Sentinel that watches the server at master,
// under the name "mymaster".
func OwnSentinel(tb testing.TB, master string) *privateserver.Server {
	tb.Helper()
	return OwnServer(tb, "redis", privateserver.Sentinel(master))
}

// OwnNATS starts a NATS server for this test alone, which may kill or freeze it.
// conf is the text of its configuration. The end of the test stops it.
func OwnNATS(tb testing.TB, conf string) *privateserver.Server {
	tb.Helper()
	return OwnServer(tb, "nats", privateserver.NATS(conf))
}

// OwnServer starts a server for this test alone, which may kill or freeze it. The tests that need the program are skipped
// without it, or fail if NOTIFYD_TEST_REQUIRE has name. The end of the test stops the server.
func OwnServer(tb testing.TB, name string, program privateserver.Program) *privateserver.Server {
	tb.Helper()
	server, err := privateserver.Start(tb.Context(), program)
	orSkip(tb, name, err)
	stopAfter(tb, program.Name, server.Stop)
	return server
}

func (s *sharedPlain) get(ctx context.Context, env string, program privateserver.Program, scheme string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.url != "" || s.err != nil {
		return s.url, s.err
	}

	if raw := os.Getenv(env); raw != "" {
		if u, err := url.Parse(raw); err != nil || u.Host == "" {
			// The text of err holds the URL, which may hold a password.
			s.err = fmt.Errorf("%s is not a URL", env)
			return "", s.err
		}
		s.url = raw
		return s.url, nil
	}

	server, err := privateserver.Start(ctx, program)
	if err != nil {
		s.err = err
		return "", err
	}

	shared.stopLater(server.Stop)
	s.url = scheme + "://" + server.Addr()
	return s.url, nil
}
