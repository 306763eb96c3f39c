package console

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
	"github.com/notifyd/notifyd/ops"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// patience bounds each wait for an expected change; no test expects it to run out.
const patience = 2 * time.Minute

func TestMain(m *testing.M) { testenv.Main(m) }

// fakeRelay stands in for a relay: the test sets its figures, and its backlog is
// read from the database.
type fakeRelay struct {
	pool *pgxpool.Pool

	mu      sync.Mutex
	stats   observe.Stats
	queries int
	paused  map[string]bool
	by      string // who has paused last
	reason  string // why
	steady  uint64 // deliveries of the first destination between two samples
}

func (f *fakeRelay) Stats() observe.Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.steady > 0 {
		f.stats.Destinations[0].Delivered += f.steady
	}
	s := f.stats
	s.Destinations = append([]observe.DestinationStats(nil), s.Destinations...)
	for i := range s.Destinations {
		s.Destinations[i].Paused = f.paused[s.Destinations[i].Name]
	}
	return s
}

func (f *fakeRelay) Backlog(ctx context.Context) (observe.Backlog, error) {
	f.mu.Lock()
	f.queries++
	f.mu.Unlock()
	conn, err := f.pool.Acquire(ctx)
	if err != nil {
		return observe.Backlog{}, err
	}
	defer conn.Release()
	return store.ReadBacklog(ctx, conn.Conn(), store.BacklogOptions{})
}

func (f *fakeRelay) Pause(_ context.Context, name string, a ops.Action) error {
	f.set(name, true)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.by, f.reason = a.Actor, a.Reason
	return nil
}

func (f *fakeRelay) Resume(_ context.Context, name string, _ ops.Action) (bool, error) {
	return f.set(name, false), nil
}

func (f *fakeRelay) set(name string, to bool) (was bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was = f.paused[name]
	f.paused[name] = to
	return was
}

// queryCount is the number of queries for the backlog.
func (f *fakeRelay) queryCount() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.queries
}

// deliver raises the count of deliveries of the first destination.
func (f *fakeRelay) deliver(n uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats.Destinations[0].Delivered += n
}

type token string

func (t token) Verify(s string) bool { return s == string(t) }

// site is a console on a server, a database, and a browser without JavaScript.
type site struct {
	*testing.T

	relay   *fakeRelay
	pool    *pgxpool.Pool
	console *Console
	outbox  *outbox // the only one
	server  *httptest.Server
	client  *http.Client
}

// setup is a console and its only outbox.
type setup struct {
	Config
	Outbox
}

// serve starts a console; change may alter its configuration.
func serve(t *testing.T, change func(*setup)) *site {
	t.Helper()
	s := prepare(t, change)
	s.server.Start()
	return s
}

// prepare does all of serve but the start.
func prepare(t *testing.T, change func(*setup)) *site {
	t.Helper()
	pool := testdb.Pool(t, testdb.URL(t, testdb.Tables{}))
	s := &site{T: t, pool: pool, relay: &fakeRelay{pool: pool, paused: make(map[string]bool), stats: observe.Stats{
		WakeState: "listening", Destinations: []observe.DestinationStats{{Name: "mail"}, {Name: "hook", Down: true}},
	}}}
	cfg := setup{
		Config{Version: "test", Log: slog.New(slog.DiscardHandler)},
		Outbox{Relay: s.relay, Pauser: s.relay, Database: Database{Pool: pool, Schema: outboxsql.DefaultSchema}},
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if s.console, err = New(cfg.Config); err != nil {
		t.Fatal(err)
	}
	if err := s.console.Add("", cfg.Outbox); err != nil {
		t.Fatal(err)
	}
	s.outbox = s.console.outbox("")
	s.outbox.sampler.every = 50 * time.Millisecond
	_, sampled := s.outbox.sampler.next()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.console.Run(ctx)
	}()
	<-sampled // a page has no destinations before
	s.server = httptest.NewUnstartedServer(s.console)
	t.Cleanup(func() {
		cancel()
		<-done
		s.server.Close()
	})
	s.client = s.browser()
	return s
}

// browser returns a client with separate cookies, which follows no redirect.
func (s *site) browser() *http.Client {
	jar, err := cookiejar.New(nil)
	if err != nil {
		s.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	return &http.Client{Jar: jar, Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func (s *site) exec(sql string, args ...any) {
	s.Helper()
	testdb.Exec(s, s.pool, sql, args...)
}

func query[V any](s *site, sql string, args ...any) V {
	s.Helper()
	return testdb.One[V](s, s.pool, sql, args...)
}

// dead writes an event with a dead letter of a destination, and returns its id.
func (s *site) dead(eventType, destination, reason string) int64 {
	s.Helper()
	id := query[int64](s, `INSERT INTO outbox_events (event_type, payload, state, processed_at, headers, aggregate_type, aggregate_id)
		VALUES ($1, '{"secret": "PAYLOAD-TEXT"}', 'done', now(), '{"h": "v"}', 'order', '7') RETURNING id`, eventType)
	s.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, error_class, last_error)
		VALUES ($1, $2, $3, 'dead', 20, 'event', $4)`, id, destination, eventType, reason)
	return id
}

// answer is the response to a request.
type answer struct {
	code   int
	body   string
	header http.Header
}

func (s *site) do(r *http.Request) answer {
	s.Helper()
	a := testenv.Ask(s, s.client, r)
	return answer{a.Code, a.Body, a.Header}
}

func (s *site) request(method, path string, form url.Values) *http.Request {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), method, s.server.URL+path, strings.NewReader(form.Encode()))
	if err != nil {
		s.Fatal(err)
	}
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", s.server.URL)
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	return r
}

// get loads a page, which must exist.
func (s *site) get(path string) string {
	s.Helper()
	a := s.do(s.request(http.MethodGet, path, nil))
	if a.code != http.StatusOK {
		s.Fatalf("GET %s: %d, %s\n%s", path, a.code, a.header.Get("Location"), a.body)
	}
	return a.body
}

// post sends a form as a browser does on the page on, which must have the form. An empty on stands for a page of the
// console that has lost the form meanwhile.
func (s *site) post(on, path string, form url.Values) answer {
	s.Helper()
	if on != "" && !strings.Contains(s.get(on), `action="`+path+`"`) {
		s.Fatalf("%s has no form for %s", on, path)
	}
	return s.do(s.request(http.MethodPost, path, form))
}
