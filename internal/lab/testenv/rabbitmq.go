package testenv

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"sync"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/privateserver/rabbitserver"
)

// EnvAMQPURL names the environment variable with the AMQP URL of the shared
// RabbitMQ. Tests then share its vhost.
const EnvAMQPURL = "NOTIFYD_TEST_AMQP_URL"

// Broker is a vhost on the shared RabbitMQ. A test must not stop it: use
// [OwnRabbitMQ] for that.
type Broker struct {
	// URL is the AMQP URL of the vhost. The vhost belongs to the test alone, except on a broker of [EnvAMQPURL]. Tests
	// name their queues uniquely.
	URL string
	// Server is the node, nil for a broker of [EnvAMQPURL]. It gives access to Addr and Ctl.
	Server *rabbitserver.Server
}

// sharedRabbitMQ is one node for all tests of a test binary.
type sharedRabbitMQ struct {
	mu     sync.Mutex
	server *rabbitserver.Server
	err    error // why the start failed; it is tried once
}

// rabbitmq is state of the package for the same reason as postgres.
var rabbitmq sharedRabbitMQ //nolint:gochecknoglobals // see above

// RabbitMQ returns a vhost for this test on the broker that all tests of this
// binary share: the one of [EnvAMQPURL], or a private one that [Main] ends. The
// vhost is removed after the test.
func RabbitMQ(tb testing.TB) Broker {
	tb.Helper()

	if raw := os.Getenv(EnvAMQPURL); raw != "" {
		if u, err := url.Parse(raw); err != nil || u.Scheme != "amqp" && u.Scheme != "amqps" {
			tb.Fatalf("%s is not an AMQP URL", EnvAMQPURL) // its text may hold a password
		}
		return Broker{URL: raw}
	}

	server, err := rabbitmq.get(tb.Context())
	orSkip(tb, "rabbitmq", err)

	vhost := databaseName(tb.Name())
	// One command instead of three, because each starts an Erlang VM.
	add := fmt.Sprintf(`ok = rabbit_vhost:add(<<"%s">>, <<"test">>), `+
		`rabbit_auth_backend_internal:set_permissions(<<"%s">>, <<"%[1]s">>, <<".*">>, <<".*">>, <<".*">>, <<"test">>).`,
		vhost, rabbitserver.User)
	if _, err := server.Ctl(tb.Context(), "eval", add); err != nil {
		tb.Fatalf("add the vhost of the test: %v", err)
	}

	tb.Cleanup(func() {
		ctx, cancel := afterwards(tb)
		defer cancel()
		if _, err := server.Ctl(ctx, "delete_vhost", vhost); err != nil {
			tb.Errorf("delete the vhost of the test: %v", err)
		}
	})

	return Broker{URL: server.URL(vhost), Server: server}
}

// OwnRabbitMQ starts a node for this test alone, which may kill or pause it. The
// end of the test stops it.
func OwnRabbitMQ(tb testing.TB, cfg rabbitserver.Config) *rabbitserver.Server {
	tb.Helper()
	server, err := rabbitserver.Start(tb.Context(), cfg)
	orSkip(tb, "rabbitmq", err)
	stopAfter(tb, "RabbitMQ", server.Stop)
	return server
}

func (r *sharedRabbitMQ) get(ctx context.Context) (*rabbitserver.Server, error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.server != nil || r.err != nil {
		return r.server, r.err
	}

	r.server, r.err = rabbitserver.Start(ctx, rabbitserver.Config{})
	if r.err == nil {
		shared.stopLater(r.server.Stop)
	}
	return r.server, r.err
}
