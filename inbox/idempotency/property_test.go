package idempotency_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/inbox/idempotency"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

// place is a store whose connections can be killed.
type place struct {
	store idempotency.Store
	kill  func(context.Context) error // all connections of the store
}

// postgres opens a store for the test.
func postgres(tb testing.TB) place {
	tb.Helper()
	url := testenv.Database(tb)
	open := func(name string) *pgxpool.Pool {
		return testdb.Pool(tb, url, func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["application_name"] = name })
	}
	victims, killer := open("victim"), open("killer")
	if err := idempotency.CreatePostgres(tb.Context(), killer, ""); err != nil {
		tb.Fatal(err)
	}
	s, err := idempotency.NewPostgres(victims, "")
	if err != nil {
		tb.Fatal(err)
	}
	return place{s, func(ctx context.Context) error {
		_, err := killer.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'victim'`)
		return err
	}}
}

// redisServer starts a Redis for the test.
func redisServer(tb testing.TB) place {
	tb.Helper()
	addr := testenv.OwnRedis(tb).Addr()
	victims := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	tb.Cleanup(func() { _ = victims.Close() })
	killer := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, PoolSize: 1})
	tb.Cleanup(func() { _ = killer.Close() })
	s, err := idempotency.NewRedis(scriptsOf(victims), "")
	if err != nil {
		tb.Fatal(err)
	}
	return place{s, func(ctx context.Context) error {
		return killer.Do(ctx, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err()
	}}
}

// What a handler does, by the name in the request's header Do.
const (
	answers = "answers"
	fails   = "fails"
	panics  = "panics"
	large   = "writes much"
)

// ledger watches handlers at work.
type ledger struct {
	mu      sync.Mutex
	running map[string]int
	final   map[string]int // runs with a final answer
	number  atomic.Int64
	broken  []string
}

func (l *ledger) enter(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running[key]++; l.running[key] > 1 {
		l.broken = append(l.broken, "two handlers at once for "+key)
	}
}

func (l *ledger) leave(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running[key]--
}

func (l *ledger) isFinal(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.final[key]++; l.final[key] > 1 {
		l.broken = append(l.broken, "two answers of "+key)
	}
}

// ServeHTTP follows the header Do, and answers with a unique number.
func (l *ledger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key, what := r.Header.Get(idempotency.Header), r.Header.Get("Do")
	l.enter(key)
	defer l.leave(key)
	if what == answers || what == large {
		l.isFinal(key)
	}
	switch what {
	case fails:
		w.WriteHeader(http.StatusBadGateway)
	case panics:
		panic("broken")
	case large:
		_, _ = io.WriteString(w, strings.Repeat("x", 100))
	default:
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprint(w, "number ", l.number.Add(1))
	}
}

// TestOneAnswer: a key never has two handlers at once or two answers, whatever
// handlers do and whenever connections to the store die.
func TestOneAnswer(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(testing.TB) place{
		"memory": func(testing.TB) place {
			return place{idempotency.NewMemory(), func(context.Context) error { return nil }}
		},
		"postgres": postgres,
		"redis":    redisServer,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := open(t)
			var run atomic.Int64
			rapid.Check(t, func(rt *rapid.T) {
				plans := rapid.SliceOfN(rapid.SliceOfN(rapid.SampledFrom([]string{answers, answers, fails, panics, large, "kill"}), 1, 6), 2, 6).Draw(rt, "plans")
				oneAnswer(t, rt, p, fmt.Sprint("run-", run.Add(1)), plans)
			})
		})
	}
}

// oneAnswer lets each plan send its requests with one of two keys in turn.
func oneAnswer(t *testing.T, rt *rapid.T, p place, run string, plans [][]string) {
	t.Helper()
	l := &ledger{running: map[string]int{}, final: map[string]int{}}
	// No lease or answer expires within the test, so the results are due to the store.
	h := wrap(t, idempotency.Options{Store: p.store, Lease: time.Hour, StoreTimeout: patience, MaxAnswer: 50}, l.ServeHTTP)
	send := func(key, what string) *httptest.ResponseRecorder {
		r := request(key, "")
		r.Header.Set("Do", what)
		rec, panicked := do(h, r)
		if panicked != nil {
			rec.Code = http.StatusInternalServerError
		}
		return rec
	}
	var mu sync.Mutex
	got := map[string]map[string]bool{}
	var wg sync.WaitGroup
	for _, plan := range plans {
		wg.Go(func() {
			for i, what := range plan {
				if what == "kill" {
					if err := p.kill(t.Context()); err != nil {
						t.Error(err)
					}
					continue
				}
				key := fmt.Sprint(run, "-", i%2)
				rec := send(key, what)
				mu.Lock()
				if got[key] == nil {
					got[key] = map[string]bool{}
				}
				switch rec.Code {
				case http.StatusCreated:
					got[key][rec.Body.String()] = true
				case http.StatusOK, http.StatusGone:
					got[key][large] = true
				case http.StatusConflict, http.StatusBadGateway, http.StatusInternalServerError:
				default:
					t.Errorf("%s: %d %s", key, rec.Code, rec.Body)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for key, seen := range got {
		// No key is held any longer, and a new request gets the answer that was given.
		rec := send(key, answers)
		if rec.Code == http.StatusGone {
			seen[large] = true
		} else {
			seen[rec.Body.String()] = true
		}
		if rec.Code != http.StatusCreated && rec.Code != http.StatusGone || len(seen) != 1 || l.final[key] != 1 {
			rt.Fatalf("%s: %d in the end, answers %v, %d final runs", key, rec.Code, seen, l.final[key])
		}
	}
	if len(l.broken) > 0 {
		rt.Fatal(l.broken)
	}
}
