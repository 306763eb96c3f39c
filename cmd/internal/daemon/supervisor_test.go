package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/cmd/internal/destinations"
	"github.com/notifyd/notifyd/cmd/internal/systemd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/admin"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

// hung is a handler that does not heed its context. It returns when it is released.
type hung struct {
	called   chan struct{}
	released chan struct{}
}

func (h *hung) Deliver(context.Context, *delivery.Event) error {
	h.called <- struct{}{}
	<-h.released
	return nil
}

// supervised runs a supervisor whose handlers are all h.
type supervised struct {
	*supervisor
	reloads chan struct{}
	stop    context.CancelFunc
	ended   chan error
	log     *record
}

func supervise(t *testing.T, path string, h delivery.Handler) *supervised {
	t.Helper()
	load := func() (*config.Config, error) {
		return config.Load(path, "", destinations.Registry(".", io.Discard, io.Discard), unset)
	}
	c, err := load()
	if err != nil {
		t.Fatal(err)
	}
	sd, err := systemd.New(unset)
	if err != nil {
		t.Fatal(err)
	}
	s := &supervised{reloads: make(chan struct{}), ended: make(chan error, 1), log: &record{}}
	s.supervisor = newSupervisor(c, origin{path: path}, load, s.log, nil, sd, slog.New(slog.NewTextHandler(s.log, nil)))
	s.opener = func(*config.Config, *slog.Logger) opener {
		return func(string, config.Destination) (delivery.Handler, io.Closer, error) {
			return h, closerFunc(func() error { return nil }), nil
		}
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	s.stop = stop
	go func() { s.ended <- s.run(ctx, s.reloads) }()
	t.Cleanup(stop)
	return s
}

// TestHungDelivery: while a delivery does not end, no other relay of its outbox begins: a daemon of one outbox ends; of
// many, that outbox is down, also if it was removed and comes back; and a stop is no clean one.
func TestHungDelivery(t *testing.T) {
	t.Parallel()
	const text = "version: 1\ndatabase: {url: '%s'}\nlog: {format: json}\nrelay: {shutdown_timeout: 10ms}\n" +
		"destinations: {audit: {type: log, concurrency: %d}}\nroutes: [{match: '*', to: audit}]\n%s"
	for name, c := range map[string]struct {
		many string
		then func(t *testing.T, s *supervised, write func(concurrency int, many string)) (err error)
	}{
		"one": {"", func(_ *testing.T, s *supervised, write func(int, string)) error {
			write(2, "")
			s.reloads <- struct{}{}
			return <-s.ended
		}},
		"one of many": {"outboxes: {list: [{name: one}]}\n", func(t *testing.T, s *supervised, write func(int, string)) error {
			t.Helper()
			write(2, "outboxes: {list: [{name: other, schema: other}]}\n")
			s.reloads <- struct{}{}
			s.log.await(t, `"removed":["one"]`)
			write(2, "outboxes: {list: [{name: one}]}\n")
			s.reloads <- struct{}{}
			s.log.await(t, `"outbox":"one","err":"a delivery has not ended: restart notifyd`)
			return s.member("one").failure()
		}},
		"stop in a reload": {"", func(t *testing.T, s *supervised, write func(int, string)) error {
			t.Helper()
			write(2, "")
			s.reloads <- struct{}{}
			s.log.await(t, "reloading the configuration")
			s.stop()
			return <-s.ended
		}},
		"stop": {"outboxes: {list: [{name: one}]}\n", func(_ *testing.T, s *supervised, _ func(int, string)) error {
			s.stop()
			return <-s.ended
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, publish := outbox(t)
			h := &hung{called: make(chan struct{}, 1), released: make(chan struct{})}
			release := sync.OnceFunc(func() { close(h.released) })
			defer release()
			path := testenv.WriteFile(t, filepath.Join(t.TempDir(), "notifyd.yaml"), fmt.Sprintf(text, url, 1, c.many))
			s := supervise(t, path, h)
			publish()
			<-h.called
			err := c.then(t, s, func(concurrency int, many string) {
				t.Helper()
				testenv.WriteFile(t, path, fmt.Sprintf(text, url, concurrency, many))
			})
			if !errors.Is(err, notifyd.ErrShutdownIncomplete) {
				t.Errorf("%v, want ErrShutdownIncomplete\n%s", err, s.log.text())
			}
			if n := strings.Count(s.log.text(), "relay started"); n != 1 {
				t.Errorf("%d relays have begun", n)
			}
			release()
			s.stop()
			if name == "one of many" {
				if err := <-s.ended; err != nil {
					t.Error(err) // the outbox was down, and no relay had to be stopped
				}
			}
		})
	}
}

// TestOutcomeAfterOutage: the outcome of a reload during an outage of the database is stored when the database answers again.
func TestOutcomeAfterOutage(t *testing.T) {
	t.Parallel()
	url, _ := outbox(t)
	proxy, through := testenv.NewProxy(t, url)
	text := fmt.Sprintf("version: 1\ndatabase: {url: '%s'}\ndestinations: {audit: {type: log}}\nroutes: [{match: '*', to: audit}]\n"+
		"outboxes: {list: [{name: one}]}\n", through)
	path := testenv.WriteFile(t, filepath.Join(t.TempDir(), "notifyd.yaml"), text)
	s := supervise(t, path, delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return nil }))
	s.log.await(t, "relay started")
	isDown := func() bool { return s.member("one").relay().Health().DatabaseDown }
	stored := func(what, condition string) {
		t.Helper()
		pool := testdb.Pool(t, url)
		testenv.Await(t, what, func() bool {
			return testdb.One[bool](t, pool, `SELECT count(*) = 1 FROM outbox_relays WHERE `+condition)
		})
	}
	stored("the row of the relay", "refused IS NULL")

	proxy.Cut()
	testenv.Await(t, "the outage", isDown)
	testenv.WriteFile(t, path, "version: 2\n")
	s.reloads <- struct{}{}
	s.log.await(t, "configuration refused")
	if !isDown() {
		t.Error("the database answers although the network is cut")
	}
	proxy.Restore()
	stored("the refusal", "refused LIKE '%version%'")

	s.stop()
	if err := <-s.ended; err != nil {
		t.Error(err)
	}
}

// TestWrongFileWhileRelayBegins: a reload checks the file for a relay that has begun and is not ready yet.
func TestWrongFileWhileRelayBegins(t *testing.T) {
	t.Parallel()
	url, _ := outbox(t)
	tx := testdb.Begin(t, testdb.Pool(t, url), pgx.TxOptions{})
	testdb.Exec(t, tx, `LOCK TABLE outbox_events`) // no claim ends
	const text = "version: 1\ndatabase: {url: '%s'}\ndestinations: {audit: {type: log%s}}\nroutes: [{match: '*', to: audit}]\n" +
		"outboxes: {list: [{name: one}]}\n"
	path := testenv.WriteFile(t, filepath.Join(t.TempDir(), "notifyd.yaml"), fmt.Sprintf(text, url, ""))
	s := supervise(t, path, delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return nil }))
	s.log.await(t, "relay started")
	if err := s.member("one").health(); !errors.Is(err, admin.ErrNotReady) {
		t.Fatalf("the relay is %v, want that it is not ready", err)
	}

	testenv.WriteFile(t, path, fmt.Sprintf(text, url, ", order: total"))
	s.reloads <- struct{}{}
	s.log.await(t, "configuration refused")
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.stop()
	if err := <-s.ended; err != nil {
		t.Error(err)
	}
}

// TestNotReadyBeforeTheQuery: a daemon that has not listed its outboxes yet is not ready.
func TestNotReadyBeforeTheQuery(t *testing.T) {
	t.Parallel()
	path := testenv.WriteFile(t, filepath.Join(t.TempDir(), "notifyd.yaml"), "version: 1\ndatabase: {url: 'postgres://u@127.0.0.1:1/d?sslmode=disable'}\n"+
		"destinations: {audit: {type: log}}\nroutes: [{match: '*', to: audit}]\noutboxes: {query: SELECT name FROM tenants}\n")
	s := supervise(t, path, &hung{})
	s.log.await(t, "outboxes cannot be listed")
	select {
	case <-s.ready:
		t.Error("it is ready")
	default:
	}
	s.stop()
	if err := <-s.ended; err != nil {
		t.Error(err)
	}
}

// TestSharedHandlers: outboxes share a handler while its settings are the same; a destination that has changed gets
// another one beside it; the last one to give a handler back closes it.
func TestSharedHandlers(t *testing.T) {
	t.Parallel()
	parse := func() *config.Config {
		t.Helper()
		c, err := config.Parse("notifyd.yaml", []byte("version: 1\ndestinations: {audit: {type: file, path: "+t.TempDir()+"/events.jsonl}, other: {type: log}}\nroutes: [{match: '*', to: [audit, other]}]\n"),
			destinations.Registry(".", io.Discard, io.Discard), unset)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	shared, log := newSharedHandlers(), slog.New(slog.DiscardHandler)
	open := func(c *config.Config, purpose string) (delivery.Handler, func() int) {
		t.Helper()
		h, closer, err := shared.opener(c, log)(purpose, c.Destinations[0])
		if err != nil {
			t.Fatal(err)
		}
		return h, func() int {
			t.Helper()
			for range 2 { // a second time does nothing
				if err := closer.Close(); err != nil {
					t.Error(err)
				}
			}
			return len(shared.slot(handlerKey{purpose, "audit"}).all)
		}
	}
	old := parse()
	first, closeFirst := open(old, "")
	second, closeSecond := open(old, "")
	alerts, closeAlerts := open(old, "alerts")
	changed, closeChanged := open(parse(), "") // another directory
	if first != second || first == alerts || first == changed {
		t.Errorf("%p, %p, for alerts %p, changed %p", first, second, alerts, changed)
	}
	if left := []int{closeFirst(), closeSecond(), closeChanged(), closeAlerts()}; fmt.Sprint(left) != "[2 1 0 0]" {
		t.Errorf("handlers left after each is released: %v", left)
	}
}

// TestOutboxesLogOnce: what is wrong with the query is logged when it begins, and not at each try.
func TestOutboxesLogOnce(t *testing.T) {
	t.Parallel()
	out := &record{}
	f := newSupervisor(&config.Config{}, origin{}, nil, io.Discard, nil, nil, slog.New(slog.NewTextHandler(out, nil)))
	failed, rows := errors.New("it fails"), errors.New("a row")
	for _, found := range []struct{ wrong, err error }{{nil, failed}, {nil, failed}, {rows, nil}, {rows, nil}, {nil, nil}, {nil, failed}} {
		f.found(t.Context(), found.wrong, found.err)
	}
	var got []string
	for line := range strings.Lines(out.text()) {
		_, message, _ := strings.Cut(line, " msg=")
		got = append(got, strings.TrimSpace(message))
	}
	fails, row := `"outboxes cannot be listed" err="it fails"`, `"outbox rows ignored" err="a row"`
	if want := []string{fails, row, fails}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestReloadStateAtRest(t *testing.T) {
	t.Parallel()
	s := &reloadState{success: true}
	s.failed(&config.Error{Mistakes: []config.Mistake{{File: "f", Line: 1, Column: 2, Message: "a"}, {File: "f", Message: "b"}}})
	if err := s.check().Do(); err == nil || !strings.Contains(err.Error(), "f:1:2: a; f: b") {
		t.Errorf("got %v", err)
	}
	s.succeeded(nil)
	if err := s.check().Do(); err != nil {
		t.Error(err)
	}
}

// TestZeroSettings: a 0 of the file means what the reference has for it, and not the default.
func TestZeroSettings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		settings string
		none     bool
	}{
		"zeros":    {"relay: {canary: 0, shutdown_timeout: 0}\nretention: {keep: 0}\n", true},
		"defaults": {"", false},
	} {
		path := testenv.WriteFile(t, t.TempDir()+"/notifyd.yaml", "version: 1\n"+c.settings)
		read, err := config.Load(path, "", destinations.Registry(".", nil, nil), func(string) (string, bool) { return "", false })
		if err != nil {
			t.Fatal(err)
		}
		got := relayConfig(read, origin{path: path}, nil, nil, nil).WithDefaults()
		if got.Canary == 0 != c.none || got.ShutdownTimeout == 0 != c.none || got.Retention.Keep == 0 != c.none {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestMain(m *testing.M) { testenv.Main(m) }

func unset(string) (string, bool) { return "", false }

// outbox makes a database with tables, and returns its URL and what writes an event.
func outbox(t *testing.T) (url string, publish func()) {
	t.Helper()
	url = testdb.URL(t, testdb.Tables{})
	return url, func() {
		t.Helper()
		testdb.Exec(t, testdb.Pool(t, url), `INSERT INTO outbox_events (event_type, payload) VALUES ('order.placed', '{}')`)
	}
}

// record keeps what is logged.
type record struct {
	mu   sync.Mutex
	b    strings.Builder
	more chan struct{} // closed with the next line; nil if nobody waits
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.more != nil {
		close(r.more)
		r.more = nil
	}
	return r.b.Write(p)
}

func (r *record) read() (text string, more <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.more == nil {
		r.more = make(chan struct{})
	}
	return r.b.String(), r.more
}

func (r *record) text() string {
	text, _ := r.read()
	return text
}

// patience is longer than anything takes.
const patience = 4 * time.Minute

// await waits until a text was logged.
func (r *record) await(t *testing.T, want string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		text, more := r.read()
		if strings.Contains(text, want) {
			return
		}
		select {
		case <-more:
		case <-deadline:
			t.Fatalf("%q was not logged; what was:\n%s", want, text)
		}
	}
}
