package integration

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// oneIncident is the calm after which the relay reports the end of an incident: a
// new failure before that belongs to the same incident.
const oneIncident = 5 * time.Second

// TestPostgresRestartsAgainAndAgain: the server crashes again and again, the first time in the middle of
// deliveries, and nothing is lost. Repeated crashes are one incident, or as
// many as there were breaks that could have ended one.
func TestPostgresRestartsAgainAndAgain(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			server := testenv.OwnPostgres(t, map[string]string{"fsync": "on"})
			e, h := envAt(t, server.URL("")).become(mode), newRecorder(t)
			r := e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{})
			const first, others, restarts = 300, 50, 10
			breaks := 1
			last := time.Now()
			for n := range restarts {
				if n > 0 && time.Since(last) >= oneIncident {
					breaks++
				}
				last = time.Now()
				events := others
				if n == 0 {
					events = first
				}
				e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'n', '1' FROM generate_series(1, $1::int)`, events)
				if n == 0 {
					h.next()
				}
				if err := crash(t.Context(), server, (n%2 == 0) == (mode == outboxsql.ModeStream)); err != nil {
					t.Fatal(err)
				}
				e.pool.Reset()
			}
			e.untilState(e.insertWhenUp("n"), "done")
			e.untilDone()
			h.all(e, first+(restarts-1)*others+1)
			testenv.Await(t, "the end of the incidents", func() bool {
				return r.count("database answers again") == r.count("database does not answer") && r.count("listening again") == r.count("not listening") &&
					r.count("leases renewed again") == r.count("no connection to renew the leases")
			})
			for _, message := range []string{"database does not answer", "not listening", "no connection to renew the leases"} {
				if got := r.count(message); got > breaks || got < 1 && (mode == outboxsql.ModeStream || message != "no connection to renew the leases") {
					t.Errorf("%q was logged %d times in %d storms", message, got, breaks)
				}
			}
			for line := range strings.Lines(r.log.text()) { // nothing else is logged about it
				if strings.Contains(line, "level=WARN") && !strings.Contains(line, "does not answer") && !strings.Contains(line, "not listening") && !strings.Contains(line, "no connection to renew the leases") &&
					!strings.Contains(line, "leases lost") &&
					!strings.Contains(line, "results refused") && // a crash loses unflushed changes: the lease of a slow delivery, or its end
					(!strings.Contains(line, "claim lost") || !strings.Contains(line, "25P03")) { // a relay that the machine stalled for 5 s
					t.Errorf("the relay logged: %s", line)
				}
			}
		})
	}
}

// crash has the server end without a checkpoint, or be killed, and start again.
func crash(ctx context.Context, server *pgserver.Server, kill bool) error {
	if !kill {
		return server.Restart(ctx, pgserver.Immediate)
	}
	if err := server.Kill(ctx); err != nil {
		return err
	}
	return server.Start(ctx)
}

// TestTooManyClients: a relay that lost its connections, and gets none because
// others have taken them all, retries more and more rarely, and logs that once.
func TestTooManyClients(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range bothModes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			const most = 12
			server := testenv.OwnPostgres(t, map[string]string{"max_connections": strconv.Itoa(most)})
			e, h := envAt(t, server.URL("")).become(mode), newRecorder(t)
			r := e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{PollInterval: 100 * time.Millisecond})
			e.untilState(e.insert("n", "1"), "done")
			admin, err := pgx.Connect(t.Context(), server.URL(""))
			if err != nil {
				t.Fatal(err)
			}
			e.pool.Reset()
			others := e.takeAllConnections(admin, most)
			begin, before := time.Now(), refusals(t, server)
			testenv.Await(t, "a number of refusals", func() bool { return refusals(t, server) >= before+25 })
			limit := 100 + int(time.Since(begin)/(50*time.Millisecond))
			if n := refusals(t, server) - before; n > limit {
				t.Errorf("the server refused %d connections, want %d at most", n, limit)
			}
			testenv.Await(t, "the relay that knows it", func() bool { return r.Stats().DatabaseDown && !r.Listening() })
			const insert = `INSERT INTO outbox_events (event_type, payload) SELECT 'n', '1' FROM generate_series(1, 100)`
			if _, err := admin.Exec(t.Context(), insert); err != nil {
				t.Fatal(err)
			}
			for _, other := range append(others, admin) {
				if err := other.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}
			testenv.Await(t, "the end of the incidents", func() bool {
				return r.count("database answers again") == 1 && r.count("listening again") == 1
			})
			e.untilDone()
			for _, message := range []string{"database does not answer", "not listening"} {
				if got := r.count(message); got != 1 {
					t.Errorf("%q was logged %d times", message, got)
				}
			}
		})
	}
}

// takeAllConnections ends the relay's connections and takes their places, until
// all but the admin's are taken. A session that ends leaves the list of sessions
// before it frees its place, so a list without the relay does not yet prove that
// it cannot come back.
func (e *env) takeAllConnections(admin *pgx.Conn, most int) (others []*pgx.Conn) {
	e.t.Helper()
	testenv.Await(e.t, "that the relay has no connection left", func() bool {
		var n int
		err := admin.QueryRow(e.ctx, `SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
			WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND application_name <> 'other' OFFSET 0) AS rest`).Scan(&n)
		if err != nil {
			e.t.Fatal(err)
		}
		full := false
		for !full {
			other, err := pgx.Connect(e.ctx, e.url+"&application_name=other")
			if full = err != nil; !full {
				others = append(others, other)
			}
		}
		return n == 0 && len(others)+1 == most
	})
	return others
}

// refusals returns the number of connections that the server has refused.
func refusals(t *testing.T, server *pgserver.Server) int {
	t.Helper()
	text, err := os.ReadFile(server.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "too many clients already")
}
