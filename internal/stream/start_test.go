package stream

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/routes"
	"github.com/notifyd/notifyd/internal/store"
)

// newStream is a log that is a stream.
func newStream(tb testing.TB) *log {
	tb.Helper()
	l := newLog(tb)
	l.Exec(`UPDATE outbox_mode SET mode = 'stream'`)
	return l
}

// create creates the positions of wanted destinations.
func (l *log) create(all ...Wanted) {
	l.Helper()
	err := pgx.BeginFunc(l.Context(), l.Conn, func(tx pgx.Tx) error {
		_, err := createPositions(l.Context(), tx, nil, all)
		return err
	})
	if err != nil {
		l.Fatal(err)
	}
}

func wanted(destination string, start engine.Start) Wanted {
	return Wanted{Wanted: routes.Wanted{Destination: destination}, Start: start}
}

// begins returns where a destination begins.
func (l *log) begins(destination string) string {
	l.Helper()
	return testdb.One[string](l.DB, l.Conn, `SELECT head || ' ' || open FROM outbox_positions WHERE destination = $1`, destination)
}

// TestStartOfScanner: if all first destinations have a start_from, the unrouted scanner begins with the first of them.
func TestStartOfScanner(t *testing.T) {
	t.Parallel()
	now, third := engine.Start{Kind: engine.StartNow}, engine.Start{Kind: engine.StartAtID, ID: 3}
	for want, all := range map[string][]Wanted{
		"10 {}": {wanted("a", now), {}},
		"2 {}":  {{}, wanted("a", now), wanted("b", third)},
		"0 {}":  {{}, wanted("a", now), wanted("b", engine.Start{})},
	} {
		l := newStream(t)
		for range 10 {
			l.Exec(insert)
		}
		l.create(all...)
		if got := l.begins(""); got != want {
			t.Errorf("it begins at %s, want %s", got, want)
		}
	}
}

// TestStart: the first destinations begin where the queue has ended, later ones at their Start, or now.
func TestStart(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	for i := range 10 {
		l.Exec(`INSERT INTO outbox_events (event_type, payload, created_at) VALUES ('a', '{}', timestamptz '2026-11-01Z' + $1 * interval '1 minute')`, i+1)
	}
	l.Exec(`UPDATE outbox_mode SET origin_head = 4, origin_open = '{[2,4)}'`)
	l.Exec(`DELETE FROM outbox_events WHERE id IN (1, 6)`)
	noon := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	at := func(minute int) engine.Start {
		return engine.Start{Kind: engine.StartAtTime, Time: noon.Add(time.Duration(minute) * time.Minute)}
	}
	l.create(Wanted{}, wanted("first", engine.Start{}), wanted("second", engine.Start{}), wanted("told", engine.Start{Kind: engine.StartNow}))
	l.create(wanted("later", engine.Start{}), wanted("first", engine.Start{Kind: engine.StartAtID, ID: 1}),
		wanted("beginning", engine.Start{Kind: engine.StartAtBeginning}), wanted("id", engine.Start{Kind: engine.StartAtID, ID: 3}),
		wanted("unassigned", engine.Start{Kind: engine.StartAtID, ID: 999}),
		wanted("time", at(5)), wanted("time of what is gone", at(6)),
		wanted("long ago", at(-100)), wanted("future", at(100)))
	for destination, want := range map[string]string{
		"": "4 {[2,4)}", "first": "4 {[2,4)}", "second": "4 {[2,4)}", "told": "10 {}",
		"later": "10 {[6,7)}", "beginning": "0 {}", "id": "2 {}",
		"unassigned": "10 {}", "time": "4 {}", "time of what is gone": "5 {}", "long ago": "1 {}", "future": "10 {}",
	} {
		if got := l.begins(destination); got != want {
			t.Errorf("%q begins at %s, want %s", destination, got, want)
		}
	}
	// An unrouted scanner that comes later reads everything as well.
	l.Exec(`DELETE FROM outbox_positions WHERE destination = ''`)
	l.create(Wanted{})
	if got := l.begins(""); got != "4 {[2,4)}" {
		t.Errorf("the unrouted scanner begins at %s", got)
	}
}

// TestStartOfNothing: a table without events, and one whose events are all gone.
func TestStartOfNothing(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	l.create(wanted("a", engine.Start{Kind: engine.StartNow}), wanted("b", engine.Start{Kind: engine.StartAtTime, Time: time.Now()}))
	if a, b := l.begins("a"), l.begins("b"); a != "0 {}" || b != "0 {}" {
		t.Errorf("they begin at %s and %s", a, b)
	}
	l.Exec(insert)
	l.Exec(`DELETE FROM outbox_events`)
	if id, err := store.FirstSince(t.Context(), l.Conn, time.Now()); id != 2 || err != nil {
		t.Errorf("the next event will be %d; %v", id, err)
	}
}
