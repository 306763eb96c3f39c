package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// idleRuns are runs of the daemon until it is idle, with one destination, a webhook.
type idleRuns struct {
	*testing.T

	url, config string
	calls       atomic.Int64
	answer      func(call int64) int // returns the status
}

// forIdleRuns runs a test in both modes. %s of lane are settings of the destination.
func forIdleRuns(t *testing.T, lane string, test func(r *idleRuns)) {
	t.Helper()
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			r := &idleRuns{T: t, url: databaseOf(t, mode), answer: func(int64) int { return http.StatusOK }}
			hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(r.answer(r.calls.Add(1)))
			}))
			t.Cleanup(hook.Close)
			r.config = file(t, fmt.Sprintf("version: 1\ndatabase: {url: %q}\nlog: {level: debug, format: json}\nadmin: {listen: '127.0.0.1:0'}\ndestinations:\n  hook: {type: webhook, url: %q, %s}\nroutes: [{match: 'order.*', to: hook}]\n",
				r.url, hook.URL, lane))
			test(r)
		})
	}
}

const saysIdle = `"msg":"relay idle"`

func (r *idleRuns) start() *runningDaemon {
	r.Helper()
	d := startDaemon(r.T, nil, "run", "--until-idle", "-c", r.config)
	r.Cleanup(func() {
		if r.Failed() {
			r.Log(d.stderr.text())
		}
	})
	return d
}

// ends waits for the end of a run that nothing stops, and expects so many calls of the destination since the first run.
func (r *idleRuns) ends(d *runningDaemon, calls int64) {
	r.Helper()
	if code, log := d.wait(r.T), d.stderr.text(); code != command.ExitOK || !strings.Contains(log, saysIdle) {
		r.Fatalf("exit code %d:\n%s", code, log)
	}
	if n := r.calls.Load(); n != calls {
		r.Fatalf("%d calls, want %d", n, calls)
	}
}

func (r *idleRuns) insert(n int) {
	r.Helper()
	execute(r.T, r.url, fmt.Sprintf(`INSERT INTO outbox_events (event_type, payload) SELECT 'order.placed', '{}' FROM generate_series(1, %d)`, n))
}

// keepsRunning expects that a run has checked three times more whether it is idle, and is not. Each check opens a connection.
func (r *idleRuns) keepsRunning(d *runningDaemon) {
	r.Helper()
	d.stderr.await(r.T, `"msg":"admin server listening"`)
	checks := func() (n int) {
		_, text := fetch(r.T, "http://"+listenOf(d)+"/metrics")
		_, after, _ := strings.Cut(text, `notifyd_connections_opened_total{role="watch"} `)
		_, _ = fmt.Sscan(after, &n)
		return n
	}
	// Each scrape opens one, too.
	for before, scrapes := checks(), 1; checks()-before < scrapes+3; scrapes++ {
		if log := d.stderr.text(); strings.Contains(log, saysIdle) {
			r.Fatalf("it is idle:\n%s", log)
		}
	}
	if log := d.stderr.text(); strings.Contains(log, saysIdle) {
		r.Fatalf("it is idle:\n%s", log)
	}
}

// TestUntilIdle: all that waits is delivered, and the process ends by itself; so it does where nothing waits.
func TestUntilIdle(t *testing.T) {
	t.Parallel()
	forIdleRuns(t, "concurrency: 4", func(r *idleRuns) {
		r.ends(r.start(), 0)
		r.insert(300)
		r.ends(r.start(), 300)
		untilDone(r.T, r.url)
		r.ends(r.start(), 300)
	})
}

// TestUntilIdleWritten: what is written while it works is delivered.
func TestUntilIdleWritten(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	forIdleRuns(t, "concurrency: 1", func(r *idleRuns) {
		r.answer = func(call int64) int {
			if call <= 5 {
				r.insert(1)
			}
			return http.StatusOK
		}
		r.insert(1)
		r.ends(r.start(), 6)
	})
}

// TestUntilIdleRetry: a retry that is due soon is waited for, and one that is due later is left to a later run.
func TestUntilIdleRetry(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	fails := func(call int64) int {
		if call == 1 {
			return http.StatusConflict
		}
		return http.StatusOK
	}
	forIdleRuns(t, "backoff: {initial: 2s}", func(r *idleRuns) {
		r.answer = fails
		r.insert(1)
		r.ends(r.start(), 2)
		untilDone(r.T, r.url)
	})
	forIdleRuns(t, "backoff: {initial: 1h}", func(r *idleRuns) {
		r.answer = fails
		r.insert(2)
		r.ends(r.start(), 2)
		execute(r.T, r.url, `UPDATE outbox_deliveries SET available_at = now() WHERE state = 'retry'`)
		r.ends(r.start(), 3)
		untilDone(r.T, r.url)
	})
}

// TestUntilIdleSlow: a delivery that takes long is finished first.
func TestUntilIdleSlow(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	forIdleRuns(t, "concurrency: 1", func(r *idleRuns) {
		arrived, release := make(chan struct{}), make(chan struct{})
		r.answer = func(int64) int {
			close(arrived)
			<-release
			return http.StatusOK
		}
		r.insert(1)
		d := r.start()
		<-arrived
		r.keepsRunning(d)
		close(release)
		r.ends(d, 1)
		untilDone(r.T, r.url)
	})
}

// TestUntilIdleDestinationDown: events wait for a destination that is down, so that the run goes on until the destination
// is back. A stop ends the run as any other.
func TestUntilIdleDestinationDown(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	forIdleRuns(t, "concurrency: 1", func(r *idleRuns) {
		var up atomic.Bool
		r.answer = func(int64) int {
			if up.Load() {
				return http.StatusOK
			}
			return http.StatusServiceUnavailable
		}
		r.insert(1)
		stopped := r.start()
		r.keepsRunning(stopped)
		if code := stopped.end(r.T); code != command.ExitOK || strings.Contains(stopped.stderr.text(), saysIdle) {
			r.Fatalf("exit code %d:\n%s", code, stopped.stderr.text())
		}
		// A pause of more than 5 s, which the breaker reaches on a busy machine, would be left to a later run.
		execute(r.T, r.url, `UPDATE outbox_deliveries SET available_at = now() WHERE state = 'retry'`)
		before := r.calls.Load()
		d := r.start()
		r.keepsRunning(d)
		testenv.Await(r.T, "a call of the second run", func() bool { return r.calls.Load() > before })
		up.Store(true)
		if code := d.wait(r.T); code != command.ExitOK {
			r.Fatalf("exit code %d:\n%s", code, d.stderr.text())
		}
		untilDone(r.T, r.url)
	})
}

// TestUntilIdlePerson: what waits for a person, for a transaction or for a later time does not keep it running.
func TestUntilIdlePerson(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	forIdleRuns(t, "max_attempts: 1", func(r *idleRuns) {
		r.answer = func(call int64) int {
			if call == 1 {
				return http.StatusConflict
			}
			return http.StatusOK
		}
		r.insert(1) // becomes a dead letter
		execute(r.T, r.url, `INSERT INTO outbox_events (event_type, payload) VALUES ('unknown', '{}');
			INSERT INTO outbox_events (event_type, payload, available_at) VALUES ('order.placed', '{}', now() + interval '1 hour')`)
		conn, err := pgx.Connect(r.Context(), r.url)
		if err != nil {
			r.Fatal(err)
		}
		tx, err := conn.Begin(r.Context())
		if err == nil {
			_, err = tx.Exec(r.Context(), `INSERT INTO outbox_events (event_type, payload) VALUES ('order.placed', '{}')`)
		}
		if err != nil {
			r.Fatal(err)
		}
		r.ends(r.start(), 1)
		if n := query[string](r.T, r.url, `SELECT string_agg(state, ' ' ORDER BY state) FROM outbox_deliveries`); n != "dead retry unrouted" {
			r.Errorf("stored: %s", n)
		}
		if err := tx.Commit(r.Context()); err != nil {
			r.Fatal(err)
		}
		if err := conn.Close(r.Context()); err != nil {
			r.Fatal(err)
		}
		r.ends(r.start(), 2)
	})
}

// TestUntilIdlePaused: neither new nor stored events of a paused destination keep it running, nor events without a route
// that are new meanwhile. The next run after the pause delivers the events.
func TestUntilIdlePaused(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	forIdleRuns(t, "concurrency: 1", func(r *idleRuns) {
		execute(r.T, r.url, `INSERT INTO outbox_events (event_type, payload, available_at) VALUES ('order.placed', '{}', now() + interval '1 hour')`)
		r.ends(r.start(), 0)
		execute(r.T, r.url, `UPDATE outbox_deliveries SET available_at = now() - interval '1 hour'`)
		r.insert(3)
		execute(r.T, r.url, `INSERT INTO outbox_events (event_type, payload) VALUES ('unknown', '{}')`)
		if got := invoke(r.T, "pause", "hook", "--actor", "a test", "--database-url", r.url); got.code != 0 {
			r.Fatalf("%+v", got)
		}
		r.ends(r.start(), 0)
		if got := invoke(r.T, "resume", "hook", "--database-url", r.url); got.code != 0 {
			r.Fatalf("%+v", got)
		}
		r.ends(r.start(), 4)
	})
}

// TestUntilIdleRoute: events that had no route are delivered once they have one.
func TestUntilIdleRoute(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	forIdleRuns(t, "concurrency: 1", func(r *idleRuns) {
		execute(r.T, r.url, `INSERT INTO outbox_events (event_type, payload) SELECT 'unknown', '{}' FROM generate_series(1, 3)`)
		r.ends(r.start(), 0)
		r.config = file(r.T, strings.Replace(testenv.ReadFile(r.T, r.config), "order.*", "*", 1))
		r.ends(r.start(), 3)
	})
}

// TestUntilIdleBlocked: what waits behind a dead letter waits for a person, also in a total order, where the events behind it
// are not read.
func TestUntilIdleBlocked(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for name, order := range map[string]string{"aggregate": "on_dead: block", "total": "order: total, on_dead: block"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := databaseOf(t, "stream")
			var calls atomic.Int64
			hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				calls.Add(1)
				w.WriteHeader(http.StatusConflict)
			}))
			t.Cleanup(hook.Close)
			execute(t, url, `INSERT INTO outbox_events (event_type, payload, aggregate_type, aggregate_id) SELECT 'order.placed', '{}', 'a', '1' FROM generate_series(1, 3)`)
			config := file(t, fmt.Sprintf("version: 1\ndatabase: {url: %q}\ndestinations: {hook: {type: webhook, url: %q, max_attempts: 1, %s}}\nroutes: [{match: '*', to: hook}]\n", url, hook.URL, order))
			for range 2 {
				if got := invoke(t, "run", "--until-idle", "-c", config); got.code != command.ExitOK || calls.Load() != 1 {
					t.Fatalf("%d calls, %+v", calls.Load(), got)
				}
			}
		})
	}
}

// TestUntilIdleTogether: two runs at the same time end, and deliver all; so does one beside a relay that goes on.
func TestUntilIdleTogether(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	forIdleRuns(t, "concurrency: 4", func(r *idleRuns) {
		r.insert(300)
		for _, d := range []*runningDaemon{r.start(), r.start()} {
			if code := d.wait(r.T); code != command.ExitOK {
				r.Fatalf("exit code %d:\n%s", code, d.stderr.text())
			}
		}
		untilDone(r.T, r.url)
		stays := startDaemon(r.T, nil, "run", "-c", r.config)
		stays.stderr.await(r.T, `"msg":"relay started"`)
		r.insert(10)
		d := r.start()
		if code := d.wait(r.T); code != command.ExitOK {
			r.Fatalf("exit code %d:\n%s", code, d.stderr.text())
		}
		untilDone(r.T, r.url)
		if code := stays.end(r.T); code != command.ExitOK {
			r.Errorf("exit code %d:\n%s", code, stays.stderr.text())
		}
	})
}

// TestUntilIdleDatabaseAway: it waits for a database that is away at the start.
func TestUntilIdleDatabaseAway(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			server := testenv.OwnPostgres(t, nil)
			url := server.URL("postgres")
			if got := invoke(t, "migrate", "--database-url", url, "--mode", mode); got.code != 0 {
				t.Fatalf("%+v", got)
			}
			publishTo(t, url, "order.placed", order)
			if err := server.Halt(t.Context(), pgserver.Fast); err != nil {
				t.Fatal(err)
			}
			d := startDaemon(t, nil, "run", "--until-idle", "-c", file(t, logConfig("database: {url: '"+url+"'}\n")))
			d.stderr.await(t, "database does not answer")
			if err := server.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			if code := d.wait(t); code != command.ExitOK || !strings.Contains(d.stdout.text(), `"destination":"audit"`) {
				t.Errorf("exit code %d:\n%s", code, d.stderr.text())
			}
		})
	}
}

// TestUntilIdleOutboxes: the daemon ends when all outboxes are idle. One that cannot be relayed is a failure, and does not
// keep it running.
func TestUntilIdleOutboxes(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t)
			for _, schema := range []string{"one", "two"} {
				if got := invoke(t, "migrate", "--database-url", url, "--schema", schema, "--mode", mode); got.code != 0 {
					t.Fatalf("%+v", got)
				}
				execute(t, url, `INSERT INTO `+schema+`.outbox_events (event_type, payload) SELECT 'order.placed', '{}' FROM generate_series(1, 3)`)
			}
			// runs ends by itself, and returns its exit code and what it prints, whose writers are many.
			runs := func(outboxes string) (int, string, string) {
				d := startDaemon(t, nil, "run", "--until-idle", "-c", file(t, "version: 1\ndatabase: {url: '"+url+"'}\ndestinations: {audit: {type: log}}\nroutes: [{match: '*', to: audit}]\noutboxes: "+outboxes+"\n"))
				return d.wait(t), d.stdout.text(), d.stderr.text()
			}
			const query = "{query: 'SELECT name, name AS schema FROM tenants'}"
			execute(t, url, `CREATE TABLE tenants AS SELECT unnest('{one,two}'::text[]) AS name`)
			code, events, log := runs(query)
			if one, two := strings.Count(events, `"outbox":"one"`), strings.Count(events, `"outbox":"two"`); code != command.ExitOK || one != 3 || two != 3 {
				t.Errorf("exit code %d, %d and %d events:\n%s", code, one, two, log)
			}
			execute(t, url, `INSERT INTO two.outbox_events (event_type, payload) VALUES ('order.placed', '{}')`)
			code, events, log = runs("{list: [{name: none, schema: none}, {name: two, schema: two}]}")
			if two := strings.Count(events, `"outbox":"two"`); code != command.ExitFailure || two != 1 || !strings.Contains(log, "outbox none: ") {
				t.Errorf("exit code %d, %d events:\n%s", code, two, log)
			}
			execute(t, url, `DELETE FROM tenants`)
			if code, events, log = runs(query); code != command.ExitOK || events != "" {
				t.Errorf("without outboxes: exit code %d, %q:\n%s", code, events, log)
			}
		})
	}
}

// TestUntilIdlePurges: each run applies the retention, however short it is.
func TestUntilIdlePurges(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	forIdleRuns(t, "concurrency: 1", func(r *idleRuns) {
		r.insert(3)
		r.ends(r.start(), 3)
		execute(r.T, r.url, `UPDATE outbox_events SET created_at = created_at - interval '30 days', processed_at = processed_at - interval '30 days'`)
		r.ends(r.start(), 3)
		if n := query[int](r.T, r.url, `SELECT count(*) FROM outbox_events`); n != 0 {
			r.Errorf("%d events are left", n)
		}
	})
}
