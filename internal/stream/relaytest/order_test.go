package relaytest

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// insert writes n events of a type in one transaction, of ten aggregates.
func (p *simulation) insert(eventType, delay string, n int) {
	p.t.Helper()
	p.checker.mu.Lock() // no event is checked before it is recorded
	defer p.checker.mu.Unlock()
	rows, err := p.pool.Query(p.t.Context(), `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload, available_at)
		SELECT $1, 'a', (g % 10)::text, '{}', now() + nullif($3, '')::interval FROM generate_series(1, $2::int) AS g RETURNING id, aggregate_id`, eventType, n, delay)
	if err != nil {
		p.t.Fatal(err)
	}
	defer rows.Close()
	ids := make(map[string][]int64)
	defer func() { p.checker.wrote(ids) }()
	for rows.Next() {
		var id int64
		var aggregate string
		if err := rows.Scan(&id, &aggregate); err != nil {
			p.t.Fatal(err)
		}
		ids[aggregate] = append(ids[aggregate], id)
	}
	if err := rows.Err(); err != nil {
		p.t.Fatal(err)
	}
}

// TestStreamRouteAppears: events without a route gain one by a restart, while other events of the
// same aggregates are written.
func TestStreamRouteAppears(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	p := newSimulation(t, 1)
	p.types = []string{"one"}
	p.checker.calm, p.checker.blind = true, true
	p.start(0)
	for range 20 {
		p.insert("late", "", 100)
		p.insert("one", "", 10)
	}
	p.eventually("what has no route is a row", `SELECT count(*) = 2000 FROM outbox_deliveries WHERE state = 'unrouted'`)
	p.eventually("what has a route is delivered", `SELECT count(*) = 6 FROM outbox_positions WHERE head = 2200 AND open = '{}'`)
	p.end(0, true)
	// Delivered events come before: an event without a route has no order with them.
	p.checker.forget()
	p.types = append(p.types, "late")
	p.start(0)
	for range 20 {
		p.insert("late", "", 90)
		p.insert("one", "", 10)
	}
	p.settle()
	p.end(0, true)
	p.verdict()
}

// TestStreamDelayedTogether: delayed events of an aggregate become due together.
func TestStreamDelayedTogether(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	p := newSimulation(t, 2)
	p.start(0)
	p.start(1)
	p.insert("one", "1 hour", 4000)
	p.eventually("all wait, for the very time", `SELECT count(*) = 20000 AND bool_and(d.available_at = e.available_at)
		FROM outbox_deliveries AS d JOIN outbox_events AS e ON e.id = d.event_id`)
	if _, err := p.pool.Exec(t.Context(), `UPDATE outbox_deliveries SET available_at = now()`); err != nil {
		t.Fatal(err)
	}
	p.settle()
	p.end(0, true)
	p.end(1, true)
	p.verdict()
}

// TestStreamStormOfRestarts: a relay is started again 60 times under load.
func TestStreamStormOfRestarts(t *testing.T) {
	t.Parallel()
	p := newSimulation(t, 1)
	p.start(0)
	for range 60 {
		p.insert("one", "", 50)
		p.end(0, true)
		p.insert("two.a", "", 10)
		p.start(0)
	}
	p.settle()
	p.end(0, true)
	p.verdict()
}

// forget starts the order over.
func (j *checker) forget() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.blind = false
	for _, last := range j.last {
		clear(last)
	}
	for name, got := range j.got {
		j.known[name] = maps.Clone(got)
	}
}

func (p *simulation) eventually(what, query string) {
	p.t.Helper()
	for end := time.Now().Add(settleWithin); time.Now().Before(end); <-time.After(5 * time.Millisecond) {
		var is bool
		if err := p.pool.QueryRow(p.t.Context(), query).Scan(&is); err != nil {
			p.t.Fatal(err)
		}
		if is {
			return
		}
	}
	p.t.Fatal(fmt.Sprint("never: ", what))
}
