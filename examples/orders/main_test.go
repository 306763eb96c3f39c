//go:build testall

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/smtpsink"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// envSelf makes this test binary the shop itself.
const envSelf = "ORDERS_TEST_IS_ORDERS"

func TestMain(m *testing.M) {
	if os.Getenv(envSelf) != "" {
		main()
		return
	}
	testenv.Main(m)
}

const (
	// patience bounds each wait of a test on a busy machine.
	patience = 2 * time.Minute
	// copies of each request are sent at once.
	copies = 10
)

// world is a running shop and its surroundings.
type world struct {
	addr string
	pool *pgxpool.Pool
	mail *smtpsink.Sink
	mode outboxsql.Mode
}

// modes of the table. The shop does not know the mode.
func modes() []outboxsql.Mode { return []outboxsql.Mode{outboxsql.ModeQueue, outboxsql.ModeStream} }

// setMode changes the mode as "notifyd migrate --mode" does.
func setMode(t *testing.T, pool *pgxpool.Pool, mode outboxsql.Mode) {
	t.Helper()
	err := pool.AcquireFunc(t.Context(), func(c *pgxpool.Conn) error {
		if _, err := outboxsql.Migrate(t.Context(), c.Conn(), outboxsql.DefaultSchema, outboxsql.MigrateOptions{}); err != nil {
			return err
		}
		return outboxsql.SetMode(t.Context(), c.Conn(), outboxsql.DefaultSchema, mode, outboxsql.ModeOptions{})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// open runs the shop as main does, on a table of the mode.
func open(t *testing.T, redisURL string, mode outboxsql.Mode) world {
	t.Helper()
	sink, err := smtpsink.Start(smtpsink.Options{TLS: smtpsink.NoTLS})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sink.Close() })
	c := config{
		database: testenv.Database(t), redis: redisURL, smtp: sink.Addr(), listen: "127.0.0.1:0",
		customers: map[string]string{"token-a": "ann@example.com", "token-b": "bob@example.com"},
	}
	pool, err := pgxpool.New(t.Context(), c.database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	setMode(t, pool, mode)
	ctx, stop := context.WithCancel(t.Context())
	ready, ended := make(chan string, 1), make(chan error, 1)
	go func() { ended <- run(ctx, c, slog.New(slog.DiscardHandler), func(addr string) { ready <- addr }) }()
	w := world{pool: pool, mail: sink, mode: mode}
	select {
	case w.addr = <-ready:
	case err := <-ended:
		stop()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return w
}

// order sends a request until its answer is final, and returns that.
func (w world) order(ctx context.Context, token, key, item string) (status int, body string, err error) {
	for {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+w.addr+"/orders", strings.NewReader(fmt.Sprintf(`{"item": %q}`, item)))
		if err != nil {
			return 0, "", err
		}
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Idempotency-Key", key)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0, "", err
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			return 0, "", err
		}
		if resp.StatusCode != http.StatusConflict {
			return resp.StatusCode, string(text), nil
		}
	}
}

// number returns what a query counts.
func (w world) number(t *testing.T, query string) (n int) {
	t.Helper()
	if err := w.pool.QueryRow(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// settled waits until the relay has nothing to do.
func (w world) settled(t *testing.T) {
	t.Helper()
	left := `SELECT count(*) FROM outbox_events WHERE state <> 'done'`
	if w.mode == outboxsql.ModeStream {
		left = `SELECT (SELECT count(*) FROM outbox_events e, outbox_positions p WHERE p.destination <> '' AND (e.id > p.head OR p.open @> e.id))
			+ (SELECT count(*) FROM outbox_deliveries)`
	}
	for end := time.Now().Add(patience); w.number(t, left) > 0; {
		if time.Now().After(end) {
			t.Fatal("events are left over")
		}
	}
}

// TestTenTimes: each request is sent ten times at once, and there is one order,
// one mail, and one piece less on the shelf.
func TestTenTimes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		redisURL func() string
		mode     outboxsql.Mode
	}{
		"keys in PostgreSQL":           {func() string { return "" }, outboxsql.ModeQueue},
		"keys in Redis":                {func() string { return "redis://" + testenv.OwnRedis(t).Addr() }, outboxsql.ModeQueue},
		"keys in PostgreSQL, a stream": {func() string { return "" }, outboxsql.ModeStream},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			keys := c.redisURL()
			w := open(t, keys, c.mode)
			type request struct{ token, key, item string }
			requests := []request{
				{"token-a", "1", "lamp"},
				{"token-a", "2", "lamp"},
				{"token-a", "3", "chair"},
				{"token-b", "1", "lamp"},
				{"token-b", "4", "chair"},
			}
			var mu sync.Mutex
			answers := map[request]map[string]int{}
			fire := func() {
				var wg sync.WaitGroup
				for _, r := range requests {
					for range copies {
						wg.Go(func() {
							status, body, err := w.order(t.Context(), r.token, r.key, r.item)
							if err != nil || status != http.StatusCreated {
								t.Errorf("%v: %d %s, %v", r, status, body, err)
							}
							mu.Lock()
							defer mu.Unlock()
							if answers[r] == nil {
								answers[r] = map[string]int{}
							}
							answers[r][body]++
						})
					}
				}
				wg.Wait()
			}
			fire()
			// The same holds if the keys are lost, as when the shop dies between storing an
			// order and storing its answer.
			forget(t, w, keys)
			fire()
			seen := map[string]bool{}
			for _, r := range requests {
				if len(answers[r]) != 1 {
					t.Errorf("%v has the answers %v", r, answers[r])
				}
				for body := range answers[r] {
					if seen[body] {
						t.Errorf("%s is the answer of two", body)
					}
					seen[body] = true
				}
			}
			w.settled(t)
			if n := w.number(t, `SELECT count(*) FROM orders`); n != len(requests) {
				t.Errorf("%d orders", n)
			}
			if n := w.number(t, `SELECT sum(1000 - pieces) FROM stock`); n != len(requests) {
				t.Errorf("%d pieces were taken", n)
			}
			w.checkMails(t, len(requests))
		})
	}
}

// forget removes all idempotency keys.
func forget(t *testing.T, w world, redisURL string) {
	t.Helper()
	if redisURL == "" {
		if n := w.number(t, `WITH gone AS (DELETE FROM idempotency_keys RETURNING 1) SELECT count(*) FROM gone`); n != 5 {
			t.Errorf("%d keys", n)
		}
		return
	}
	o, err := redis.ParseURL(redisURL)
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(o)
	defer func() { _ = client.Close() }()
	if n, err := client.DBSize(t.Context()).Result(); n != 5 || err != nil {
		t.Errorf("%d keys, %v", n, err)
	}
	if err := client.FlushDB(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
}

// checkMails requires one mail per order.
func (w world) checkMails(t *testing.T, n int) {
	t.Helper()
	mails := w.mail.Mails()
	subjects := map[string]bool{}
	for _, m := range mails {
		message, err := m.Parse()
		if err != nil {
			t.Fatal(err)
		}
		subjects[message.Subject] = true
	}
	if len(mails) != n || len(subjects) != n {
		t.Errorf("%d mails with %d subjects, want %d", len(mails), len(subjects), n)
	}
}

// TestRedelivered: an event that is delivered ten times at once takes effect once.
func TestRedelivered(t *testing.T) {
	t.Parallel()
	for _, mode := range modes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			checkRedelivered(t, open(t, "", mode))
		})
	}
}

func checkRedelivered(t *testing.T, w world) {
	t.Helper()
	if status, body, err := w.order(t.Context(), "token-a", "k", "lamp"); status != http.StatusCreated || err != nil {
		t.Fatal(status, body, err)
	}
	w.settled(t)
	var e delivery.Event
	if err := w.pool.QueryRow(t.Context(), `SELECT id, payload FROM outbox_events`).Scan(&e.ID, &e.Payload); err != nil {
		t.Fatal(err)
	}
	s := &shop{pool: w.pool}
	deliver := func() {
		var wg sync.WaitGroup
		for range copies {
			wg.Go(func() {
				if err := s.takeFromStock(t.Context(), &e); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	deliver()
	if n := w.number(t, `SELECT pieces FROM stock WHERE item = 'lamp'`); n != 999 {
		t.Errorf("%d lamps are left", n)
	}
	e.ID++ // another event, of which no copy has been delivered
	deliver()
	if n := w.number(t, `SELECT pieces FROM stock WHERE item = 'lamp'`); n != 998 {
		t.Errorf("%d lamps are left", n)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	w := open(t, "", outboxsql.ModeQueue)
	for name, c := range map[string]struct {
		token, key, item string
		want             int
	}{
		"unknown": {"token-x", "k1", "lamp", http.StatusUnauthorized},
		"no key":  {"token-a", "", "lamp", http.StatusBadRequest},
		"no item": {"token-a", "k2", "", http.StatusBadRequest},
	} {
		if status, body, err := w.order(t.Context(), c.token, c.key, c.item); status != c.want || err != nil {
			t.Errorf("%s: %d %s, %v", name, status, body, err)
		}
	}
	status, body, err := w.order(t.Context(), "token-a", "k2", "lamp")
	var problem struct{ Title string }
	if status != http.StatusUnprocessableEntity || err != nil || json.Unmarshal([]byte(body), &problem) != nil || problem.Title == "" {
		t.Errorf("another request with a key that was used: %d %s, %v", status, body, err)
	}
	if n := w.number(t, `SELECT count(*) FROM orders`); n != 0 {
		t.Errorf("%d orders", n)
	}
}

func TestEnvironment(t *testing.T) { //nolint:paralleltest // it sets the environment
	for name, env := range map[string]map[string]string{
		"nothing":     {},
		"no database": {"CUSTOMERS": "a=b", "SMTP_ADDR": "127.0.0.1:25"},
		"no mail":     {"CUSTOMERS": "a=b", "DATABASE_URL": "postgres://"},
		"bad":         {"CUSTOMERS": "a", "DATABASE_URL": "postgres://", "SMTP_ADDR": "127.0.0.1:25"},
	} {
		for _, key := range []string{"CUSTOMERS", "DATABASE_URL", "SMTP_ADDR"} {
			t.Setenv(key, env[key])
		}
		if _, err := fromEnvironment(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
