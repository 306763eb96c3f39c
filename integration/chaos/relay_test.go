package chaos

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/email"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// The variables that make this test binary a relay: the URL of its database, and
// its destination.
const (
	envRelayURL  = "NOTIFYD_CHAOS_RELAY_URL"
	envRelaySink = "NOTIFYD_CHAOS_RELAY_SINK"
	envRelaySMTP = "NOTIFYD_CHAOS_RELAY_SMTP"
)

// The limits of a relay under test. Together they bound its events in flight.
const (
	relayClaims      = 4
	relayClaimBatch  = 100
	relayConcurrency = 4
	relayBatch       = 50
	// leasedMost is the number of deliveries that its lane may run under leases.
	leasedMost = relayConcurrency * relayBatch
	// claimed is the number of events that a relay of a queue may have delivered and
	// not settled: its claims and its leases.
	claimed = relayClaims*relayClaimBatch + leasedMost

	// answerWithin is how long a destination may take.
	answerWithin = 3 * time.Second
	// mailWithin is the same for the mail server: a client that gives up on a mail
	// that is about to be accepted sends it twice, and those duplicates are not
	// counted.
	mailWithin = 30 * time.Second
)

// runRelay is the process that is killed, frozen and cut off.
func runRelay(url string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // it ends with the test, however the test ends
		os.Exit(1)
	}()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	relay, err := notifyd.New(pool, notifyd.Config{Connections: relayClaims, Batch: relayClaimBatch, Canary: 500 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		return err
	}
	h, err := relayHandler()
	if err != nil {
		return err
	}
	timeout := answerWithin
	if os.Getenv(envRelaySMTP) != "" {
		timeout = mailWithin
	}
	err = relay.Handle("*", notifyd.Destination{Name: "all", Handler: h, Lane: delivery.Lane{Concurrency: relayConcurrency, Batch: relayBatch, Timeout: timeout, Backoff: delivery.Backoff{Initial: 10 * time.Millisecond, Max: time.Second, Multiplier: 2}}})
	if err != nil {
		return err
	}
	return relay.Run(ctx)
}

func relayHandler() (delivery.Handler, error) {
	if addr := os.Getenv(envRelaySMTP); addr != "" {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		number, err := strconv.Atoi(port)
		if err != nil {
			return nil, err
		}
		return email.New(email.Config{
			Host: host, Port: number, TLS: email.TLSNone, From: "chaos@example.com", To: email.List{"all@example.com"},
			Subject: "key {{ .Event.AggregateID }}", Text: "{{ .Event.ID }}",
		})
	}
	c := newClient(os.Getenv(envRelaySink), relayConcurrency)
	return delivery.BatchHandlerFunc(func(ctx context.Context, events []*delivery.Event) []error {
		batch, errs := make([]arrival, len(events)), make([]error, len(events))
		for i, e := range events {
			batch[i] = arrival{ID: e.ID, Key: e.AggregateID, By: os.Getpid()}
		}
		if err := c.send(ctx, batch); err != nil {
			for i := range errs {
				errs[i] = delivery.Unavailable(err)
			}
		}
		return errs
	}), nil
}

// child is such a process, seen from the test.
type child struct {
	cmd *exec.Cmd
	log *lockedBuffer
}

// startRelay starts one more relay of the cell.
func (c *cell) startRelay() {
	c.t.Helper()
	self, err := os.Executable()
	if err != nil {
		c.t.Fatal(err)
	}
	r := &child{cmd: exec.CommandContext(context.WithoutCancel(c.ctx), self), log: &lockedBuffer{}}
	r.cmd.Env = append(os.Environ(), envRelayURL+"="+c.relayURL)
	switch p := c.place.(type) {
	case *sink:
		r.cmd.Env = append(r.cmd.Env, envRelaySink+"="+p.addr)
	case *mailbox:
		r.cmd.Env = append(r.cmd.Env, envRelaySMTP+"="+p.Addr())
	}
	r.cmd.Stderr = r.log
	if _, err := r.cmd.StdinPipe(); err != nil { // Wait closes it
		c.t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.relays = append(c.relays, r)
	n := len(c.relays)
	c.t.Cleanup(func() {
		_ = r.cmd.Process.Kill() // it may be dead already
		_ = r.cmd.Wait()
		if r.log.has("DATA RACE") || r.log.has("panic:") || r.log.has("fatal error:") {
			c.t.Errorf("relay %d went wrong", n)
		}
		if c.t.Failed() {
			c.t.Logf("log of relay %d, process %d:\n%s", n, r.cmd.Process.Pid, r.log.tail())
		}
	})
}

func (r *child) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	testenv.Signal(t, r.cmd.Process, sig)
}

// outage is a condition that a relay logs once at its beginning and once at its end.
type outage struct{ begins, ends string }

func (o outage) noticed(r *child) bool { return r.log.last(o.begins) > r.log.last(o.ends) }

func noDatabase() outage { return outage{"database does not answer", "database answers again"} }

func refused() outage {
	return outage{"database refuses a statement", "database accepts statements again"}
}

func noListener() outage { return outage{"not listening", "listening again"} }

// awaitWell waits until all relays are at work and none of them is in an outage.
// A busy machine causes outages too, and a relay in one does not log the next.
func (c *cell) awaitWell(o outage) {
	c.t.Helper()
	c.await("all is well with the relays", func() bool {
		return c.each(func(r *child) bool { return r.log.has("relay started") && !o.noticed(r) })
	})
}

func (c *cell) each(ok func(*child) bool) bool {
	return !slices.ContainsFunc(c.relays, func(r *child) bool { return !ok(r) })
}

func (c *cell) some(ok func(*child) bool) bool { return slices.ContainsFunc(c.relays, ok) }

// lockedBuffer takes a log from another goroutine.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Contains(l.b.Bytes(), []byte(text))
}

// last returns the last position of the text, or -1 without one.
func (l *lockedBuffer) last(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.LastIndex(l.b.Bytes(), []byte(text))
}

func (l *lockedBuffer) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	const most = 8 << 10
	b := l.b.Bytes()
	return string(b[max(0, len(b)-most):])
}

func TestMain(m *testing.M) {
	if url := os.Getenv(envRelayURL); url != "" {
		if err := runRelay(url); err != nil {
			fmt.Fprintln(os.Stderr, "relay ended:", err)
			os.Exit(1)
		}
		return
	}
	mainTests(m)
}
