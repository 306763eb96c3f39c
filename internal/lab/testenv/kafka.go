package testenv

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/privateserver/kafkaserver"
)

// EnvKafkaBrokers names the environment variable with the brokers of the shared
// Kafka, host:port with commas between them. It must accept clients without TLS
// or SASL, and let them create topics.
const EnvKafkaBrokers = "NOTIFYD_TEST_KAFKA_BROKERS"

// sharedKafka is one broker for all tests of a test binary.
type sharedKafka struct {
	mu      sync.Mutex
	brokers []string
	err     error // why the start failed; it is tried once
}

// kafka is state of the package for the same reason as postgres.
var kafka sharedKafka //nolint:gochecknoglobals // see postgres

// Kafka returns the brokers that all tests of this binary share: those of
// [EnvKafkaBrokers], or a private one that [Main] ends. Tests have topics of
// their own; nothing is created on demand.
func Kafka(tb testing.TB) (brokers []string) {
	tb.Helper()
	brokers, err := kafka.get(tb.Context())
	orSkip(tb, "kafka", err)
	return brokers
}

// OwnKafka starts a broker for this test alone, which may kill or freeze it. The
// end of the test stops it.
func OwnKafka(tb testing.TB, cfg kafkaserver.Config) *kafkaserver.Server {
	tb.Helper()
	server, err := kafkaserver.Start(tb.Context(), cfg)
	orSkip(tb, "kafka", err)
	stopAfter(tb, "Kafka", server.Stop)
	return server
}

func (k *sharedKafka) get(ctx context.Context) ([]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()

	if k.brokers != nil || k.err != nil {
		return k.brokers, k.err
	}

	if list := os.Getenv(EnvKafkaBrokers); list != "" {
		k.brokers = strings.Split(list, ",")
		return k.brokers, nil
	}

	// Nobody kills this one, so nothing has to be forgotten soon.
	server, err := kafkaserver.Start(ctx, kafkaserver.Config{Properties: map[string]string{"broker.session.timeout.ms": "60000"}})
	if err != nil {
		k.err = err
		return nil, err
	}

	k.brokers = []string{server.Addr()}
	shared.stopLater(server.Stop)
	return k.brokers, nil
}
