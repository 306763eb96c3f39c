package stream

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/engine"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/lease"
	"github.com/notifyd/notifyd/internal/position"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/internal/tail"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// searching is a shard that searches for due rows, and delivers nothing.
type searching struct {
	*log

	conn *session.Conn
	sh   *shard
}

func newSearching(t *testing.T) *searching {
	t.Helper()
	l := newLog(t)
	d, err := dispatch.New(dispatch.Config{Window: 50 * time.Millisecond}, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	h := delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return nil })
	if err := d.Add("x", h, dispatch.LaneConfig{}); err != nil {
		t.Fatal(err)
	}
	l.Exec(`INSERT INTO outbox_positions (destination, head, epoch) VALUES ('x', 0, 1)`)
	p := position.Position{Lease: lease.Lease{Destination: "x", Epoch: 1, PositionID: testdb.One[int32](l.DB, l.Conn, `SELECT number FROM outbox_positions`)}}
	e := &Engine{
		Options: Options{Connector: &store.Connector{Schema: outboxsql.DefaultSchema}}, writers: tail.NewWriterScanner(),
		limits: engine.Limits{Batch: 1000, Bytes: 8 << 20, EventBytes: 64 << 20, PollInterval: time.Second},
	}
	return &searching{l, session.Direct(l.Relay()), newShard(e, d.StreamLanes()[0], p)}
}

// now returns the time of the server. A search that begins later ends with its cursor after it.
func (s *searching) now() time.Time {
	s.Helper()
	return testdb.One[time.Time](s.DB, s.Conn, `SELECT now()`)
}

// insert inserts rows that are due at ages before a time, of events 1 to the number of ages.
func (s *searching) insert(from time.Time, ages ...string) {
	s.Helper()
	for i, age := range ages {
		s.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, available_at)
			VALUES ($1, 'x', 'a', 'retry', CASE $2 WHEN 'infinity' THEN '-infinity' ELSE $3::timestamptz - $2::interval END)`, i+1, age, from)
	}
}

// search searches to the end, with reads of three rows, and returns the events of the rows that it has found.
func (s *searching) search() (found []int64) {
	s.Helper()
	for more := true; more; {
		all, m, err := s.sh.stored.readDue(s.Context(), s.conn, 3)
		more = m
		if err == nil && !more {
			more, err = s.sh.stored.endSearch(s.Context(), s.conn)
		}
		if err != nil {
			s.Fatal(err)
		}
		for i := range all {
			found = append(found, all[i].Event.ID)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// divide begins a full search that continues in spans, as after a time-out. It replaces the search before, which was slow
// and has divided the next one on a busy machine.
func divide(t *testing.T, due *deliveries.DueSearch) {
	t.Helper()
	*due = deliveries.NewDueSearch()
	due.Next(time.Now())
	if !due.Canceled() {
		t.Fatal("the search is not divided")
	}
}

// TestFullSearchFindsLateRows: a row that is written before the cursor is found by the next full search, also if the
// search is divided. Another search does not find it.
func TestFullSearchFindsLateRows(t *testing.T) {
	t.Parallel()
	for _, divided := range []bool{false, true} {
		t.Run(fmt.Sprintf("divided %t", divided), func(t *testing.T) {
			t.Parallel()
			s := newSearching(t)
			began := s.now()
			if found := s.search(); len(found) > 0 {
				t.Fatalf("found %v", found)
			}
			due := &s.sh.stored.due
			due.FullAt = time.Now().Add(time.Hour)
			s.insert(began, "100 milliseconds", "1 second", "1 second", "1 second", "1 second", "1 hour", "1 day", "10 years", "60 years", "infinity")
			if found := s.search(); len(found) > 0 {
				t.Errorf("a search from the cursor found %v", found)
			}
			if wait := time.Until(due.At()); wait > time.Second {
				t.Errorf("the next search is in %v", wait)
			}
			if due.FullAt = (time.Time{}); divided {
				divide(t, due)
			}
			if found := s.search(); !slices.Equal(found, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}) {
				t.Errorf("a full search found %v", found)
			}
			if due.FullAt.IsZero() {
				t.Error("the full search has not ended")
			}
		})
	}
}

// TestDueRowGoesBeforeSpans: a row that becomes due during a divided search is read before the next span.
func TestDueRowGoesBeforeSpans(t *testing.T) {
	t.Parallel()
	s := newSearching(t)
	due := &s.sh.stored.due
	divide(t, due)
	s.insert(s.now(), "-1 hour", "1 hour") // none is after the cursor and due
	if more, err := s.sh.stored.endSearch(t.Context(), s.conn); !more || err != nil {
		t.Fatalf("more %t: %v", more, err)
	}
	s.Exec(`UPDATE outbox_deliveries SET available_at = now() WHERE event_id = 1`)
	due.By(time.Now())
	if all, _, err := s.sh.stored.readDue(t.Context(), s.conn, 3); err != nil || len(all) != 1 || all[0].Event.ID != 1 {
		t.Errorf("read %d rows: %v", len(all), err)
	}
}

// TestDelayedEventBeforeCursor: a delayed event may become due after it was read, and before it is stored. The next search
// finds it, although it need not be full.
func TestDelayedEventBeforeCursor(t *testing.T) {
	t.Parallel()
	s := newSearching(t)
	s.Exec(`INSERT INTO outbox_events (event_type, payload, available_at) VALUES ('a', '{}', now() - interval '1 second')`)
	s.search()
	due := &s.sh.stored.due
	due.FullAt = time.Now().Add(time.Hour)
	available := testdb.One[time.Time](s.DB, s.Conn, `SELECT available_at FROM outbox_events`)
	row := deliveries.Entry{Ref: deliveries.Ref{EventID: 1}, EventType: "a", State: deliveries.Retry, Own: true}
	s.sh.stored.pending.put(entry{Entry: row, fresh: true, available: available})
	if err := s.sh.save(t.Context(), s.conn); err != nil {
		t.Fatal(err)
	}
	if !due.IsDue(time.Now()) {
		t.Errorf("the next search is in %v", time.Until(due.At()))
	}
	if found := s.search(); !slices.Equal(found, []int64{1}) {
		t.Errorf("found %v", found)
	}
}
