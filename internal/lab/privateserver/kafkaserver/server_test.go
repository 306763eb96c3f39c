package kafkaserver_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/notifyd/notifyd/internal/lab/privateserver"
	"github.com/notifyd/notifyd/internal/lab/privateserver/kafkaserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience bounds every wait.
const patience = 2 * time.Minute

func client(t *testing.T, addr string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(addr), kgo.RecordDeliveryTimeout(patience)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

func produce(t *testing.T, cl *kgo.Client, value string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := cl.ProduceSync(ctx, &kgo.Record{Topic: "t", Value: []byte(value)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// TestLives kills, halts and freezes one server.
func TestLives(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	s := testenv.OwnKafka(t, kafkaserver.Config{Properties: map[string]string{"message.max.bytes": "5000"}})
	// A broker that is busy with its start closes a connection now and then.
	cl := client(t, s.Addr(), kgo.AlwaysRetryEOF())
	testenv.KafkaTopic(t, []string{s.Addr()}, "t", 1, nil)
	produce(t, cl, "a")

	addr, pid := s.Addr(), s.PID()
	if err := s.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) || s.PID() != 0 {
		t.Errorf("after Kill: %v, pid %d", err, s.PID())
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.Addr() != addr {
		t.Errorf("Addr() = %s after a restart, was %s", s.Addr(), addr)
	}
	if err := s.Start(t.Context()); err == nil {
		t.Error("a running server was started again")
	}
	produce(t, cl, "b")

	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := client(t, s.Addr()).Ping(ctx); err == nil {
		t.Error("a frozen server answers")
	}
	if err := s.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	produce(t, cl, "c")

	if err := s.Halt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	produce(t, cl, "d")
	if end := testenv.KafkaEnd(t, []string{s.Addr()}, "t"); end != 4 {
		t.Errorf("the topic ends at %d, want 4", end)
	}
	if err := cl.ProduceSync(t.Context(), kgo.KeyStringRecord("", strings.Repeat("x", 6000))).FirstErr(); err == nil {
		t.Error("message.max.bytes is not in force")
	}
}

func TestSecureListener(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	s := testenv.OwnKafka(t, kafkaserver.Config{Secure: kafkaserver.Secure{Users: map[string]string{"ann": `p w"1`}}})
	ann := scram.Auth{User: "ann", Pass: `p w"1`}
	if err := client(t, s.SecureAddr(), kgo.AlwaysRetryEOF(), kgo.SASL(ann.AsSha256Mechanism())).Ping(t.Context()); err != nil {
		t.Error(err)
	}
	ann.Pass = "wrong"
	if err := client(t, s.SecureAddr(), kgo.SASL(ann.AsSha256Mechanism())).Ping(t.Context()); err == nil {
		t.Error("a wrong password is taken")
	}
	if err := client(t, s.SecureAddr()).Ping(t.Context()); err == nil {
		t.Error("no password is taken")
	}
}

func TestStartQuotesTheServer(t *testing.T) {
	t.Parallel()
	if _, err := kafkaserver.Find(); err != nil {
		testenv.Need(t, "kafka", err)
	}
	s, err := kafkaserver.Start(t.Context(), kafkaserver.Config{Properties: map[string]string{"process.roles": "emperor"}})
	if err == nil {
		_ = s.Stop(t.Context())
	}
	if err == nil || !strings.Contains(err.Error(), "emperor") {
		t.Errorf("Start = %v, want what Kafka says of its role", err)
	}
}

// TestFindNamesTheCure cannot run in parallel: it sets the environment.
func TestFindNamesTheCure(t *testing.T) {
	t.Setenv(kafkaserver.EnvLib, t.TempDir())
	_, err := kafkaserver.Find()
	if !errors.Is(err, privateserver.ErrNotFound) {
		t.Errorf("Find in an empty directory = %v", err)
	}
	if _, statErr := os.Stat("/usr/bin/java"); statErr == nil && !strings.Contains(err.Error(), kafkaserver.EnvLib) {
		t.Errorf("%v does not name %s", err, kafkaserver.EnvLib)
	}
}
