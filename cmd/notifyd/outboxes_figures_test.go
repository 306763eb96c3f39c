//go:build unix && figures

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/freeport"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// figureSchemas are the outboxes of the measured database.
const figureSchemas = 60

// TestOutboxesFigures prints what docs/outboxes.md says of many outboxes: memory and processor time at rest, and
// how long events of one take while another is drained. It takes a minute and wants a machine of its own, hence the
// build tag.
func TestOutboxesFigures(t *testing.T) { //nolint:paralleltest // it measures
	server := testenv.OwnPostgres(t, map[string]string{"max_connections": "600"})
	url, names := manyOutboxes(t, server, figureSchemas, 0)
	execute(t, url, `DELETE FROM tenants WHERE name = 'bare'`)
	got := make(chan time.Time, 1)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Notifyd-Outbox") == names[1] {
			got <- time.Now()
		}
	}))
	defer hook.Close()
	port, err := freeport.Pick(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before := memory()
	s := &tenants{url: url, address: fmt.Sprintf("127.0.0.1:%d", port)}
	s.reloadable = startReloadable(t, nil, fmt.Sprintf(`version: 1
database: {url: '%s'}
admin: {listen: '%s'}
relay: {connections: 1}
destinations:
  hook: {type: webhook, url: '%s'}
routes: [{match: '*', to: hook}]
outboxes: {query: 'SELECT name, schema, database FROM tenants'}
`, url, s.address, hook.URL))
	s.up(t, names...)
	sessions := func() (all string) {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(t.Context()) }()
		if err := conn.QueryRow(t.Context(), `SELECT string_agg(n || ' ' || name, ', ') || ', together ' || sum(n) FROM (
			SELECT application_name AS name, count(*) AS n FROM pg_stat_activity WHERE application_name LIKE 'notifyd/%' GROUP BY 1 ORDER BY 1) AS s`).Scan(&all); err != nil {
			t.Fatal(err)
		}
		return all
	}
	<-time.After(30 * time.Second) // until connections of the start are closed
	n := float64(len(names))
	t.Logf("%d outboxes at rest: %.2f MiB of memory each", len(names), (memory()-before)/n/(1<<20))
	t.Logf("sessions at rest: %s", sessions())
	busy := rest(30 * time.Second)
	t.Logf("processor time of the daemon at rest: %.1f %% of a core, %.2f %% for each", busy, busy/n)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	latency := func(what string) {
		var all, whole []time.Duration
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for range 300 {
			<-tick.C
			begun := time.Now()
			if _, err := conn.Exec(t.Context(), `INSERT INTO `+names[1]+`.outbox_events (event_type, payload) VALUES ('order.placed', '{}')`); err != nil {
				t.Fatal(err)
			}
			committed := time.Now()
			handled := <-got
			all, whole = append(all, max(0, handled.Sub(committed))), append(whole, handled.Sub(begun))
		}
		slices.Sort(all)
		slices.Sort(whole)
		t.Logf("from commit to handler, %s: p50 %v, p99 %v; from INSERT to handler: p50 %v, p99 %v", what, all[len(all)/2], all[len(all)*99/100], whole[len(whole)/2], whole[len(whole)*99/100])
	}
	latency("while the others are at rest")
	t.Logf("sessions with one outbox at work: %s", sessions())
	execute(t, url, `INSERT INTO `+names[0]+`.outbox_events (event_type, payload) SELECT 'order.placed', '{}' FROM generate_series(1, 1000000)`)
	latency("while another outbox is drained")
	t.Logf("sessions while another outbox is drained: %s", sessions())
	if err := conn.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// memory is what this process uses, in bytes, after a collection.
func memory() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapInuse + m.StackInuse)
}

// rest lets time pass, and returns how busy this process was, in percent of a core.
func rest(d time.Duration) float64 {
	cpu, began := processor(), time.Now()
	<-time.After(d)
	return 100 * float64(processor()-cpu) / float64(time.Since(began))
}

// processor is the processor time of this process.
func processor() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // it cannot fail for oneself
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
