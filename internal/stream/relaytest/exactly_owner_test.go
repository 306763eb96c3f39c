package relaytest

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/position"
	"github.com/notifyd/notifyd/ops"
)

// seek moves the position by hand.
func (l *exactLife) seek(to string) {
	l.t.Helper()
	store, err := ops.New(l.pool, ops.Config{Schema: "public"})
	if err != nil {
		l.t.Fatal(err)
	}
	if _, err := store.Seek(l.t.Context(), exactly, to, ops.Action{}); err != nil {
		l.t.Fatal(err)
	}
}

// more runs a relay until there are n events more, and wants these.
func (l *exactLife) more(want ...int64) {
	l.t.Helper()
	before := len(l.ids(0))
	if err := l.run(before + len(want)); err != nil {
		l.t.Fatal(err)
	}
	if got := l.ids(before); !slices.Equal(got, want) {
		l.t.Errorf("%v came, want %v", got, want)
	}
}

// TestExactlyOnceMovedBehindTheCopy: a crash has left the position in the database behind the copy. Only what a
// seek asks for again comes again: nothing below its target, and forwards nothing at all.
func TestExactlyOnceMovedBehindTheCopy(t *testing.T) {
	t.Parallel()
	l := newExactLife(t)
	l.write(10)
	l.more(ascending(1, 10)...)
	l.exec(`UPDATE outbox_positions SET head = 3 WHERE destination = 'exactly'`)
	l.seek("6")
	l.write(1)
	l.more(11)
	l.exec(`UPDATE outbox_positions SET open = '{[4,7)}' WHERE destination = 'exactly'`)
	l.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key) VALUES (2, 'exactly', 'one', 'retry', 'a/2')`)
	l.more(2) // a row that the copy includes after this step
	l.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key) VALUES (2, 'exactly', 'one', 'retry', 'a/2')`)
	l.exec(`UPDATE outbox_positions SET open = '{[4,7)}' WHERE destination = 'exactly'`)
	l.seek("10")
	l.more(10, 11)
	l.exec(`UPDATE outbox_positions SET open = '{[4,7)}' WHERE destination = 'exactly'`)
	l.seek("5")
	l.more(ascending(5, 11)...)
}

// TestExactlyOnceIDsAgain: where ids were assigned again, and a person has moved the position on, the copy says nothing
// of the events that have these ids now.
func TestExactlyOnceIDsAgain(t *testing.T) {
	t.Parallel()
	l := newExactLife(t)
	l.write(10)
	l.more(ascending(1, 10)...)
	l.exec(`UPDATE outbox_positions SET head = 3 WHERE destination = 'exactly'`)
	l.exec(`TRUNCATE outbox_events RESTART IDENTITY`)
	l.write(12)
	if err := l.run(11); err == nil || !strings.Contains(err.Error(), "again") {
		t.Fatalf("the relay ended with: %v", err)
	}
	l.seek("5")
	l.more(ascending(5, 12)...)
}

// TestExactlyOnceReplayedRow: a copy that has delivered a row does not remove a later row of a replay with the same ids.
func TestExactlyOnceReplayedRow(t *testing.T) {
	t.Parallel()
	l := newExactLife(t)
	l.write(10)
	l.more(ascending(1, 10)...)
	row := func(key string) {
		l.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key) VALUES (5, 'exactly', 'one', 'retry', $1)`, key)
	}
	row("a/5")
	l.more(5)
	row("#7#a:5")
	l.more(5)
}

// TestExactlyOnceLateWrite: a write of the position that was given up, and comes while the destination is opened,
// counts. Event 5 is a row then, and would come twice.
func TestExactlyOnceLateWrite(t *testing.T) {
	t.Parallel()
	l := newExactLife(t)
	l.write(10)
	l.opening = sync.OnceFunc(func() {
		l.exec(`WITH late AS (UPDATE outbox_positions SET head = 10, open = '{}' WHERE destination = 'exactly')
			INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, ordering_key) VALUES (5, 'exactly', 'one', 'retry', 1, 'a/5')`)
	})
	l.more(5)
}

// TestExactlyOnceCopiedDatabase: what a copy of the database, such as one for tests, has delivered under the id of
// this one is not taken for delivered, however often this one has handed events over since.
func TestExactlyOnceCopiedDatabase(t *testing.T) {
	t.Parallel()
	l := newExactLife(t)
	l.write(10)
	l.more(ascending(1, 10)...)
	l.exec(savePosition)
	l.write(5)
	l.more(ascending(11, 15)...) // the copy's
	l.exec(restorePosition)
	l.exec(`UPDATE outbox_positions SET sealed = sealed + 20 WHERE destination = 'exactly'`)
	l.more(ascending(11, 15)...)
	repeats := false
	for len(l.incidents) > 0 {
		repeats = repeats || (<-l.incidents).Kind == delivery.IncidentRepeats
	}
	if !repeats {
		t.Error("no incident")
	}
}

// count returns how many events a destination has got, each once.
func (l *exactLife) count(destination string) int {
	l.t.Helper()
	l.cluster.mu.Lock()
	defer l.cluster.mu.Unlock()
	seen := make(map[int64]bool)
	for _, e := range l.cluster.committed {
		if e.destination != destination {
			continue
		}
		if seen[e.id] {
			l.t.Errorf("%s got %d twice", destination, e.id)
		}
		seen[e.id] = true
	}
	return len(seen)
}

// live runs a relay with destinations that keep their positions under the given ids, until a condition holds.
func (l *exactLife) live(ids map[string]string, until func() bool) {
	l.t.Helper()
	r, err := notifyd.New(l.pool, notifyd.Config{Logger: slog.New(slog.NewTextHandler(l.t.Output(), nil)), Observer: l})
	if err != nil {
		l.t.Fatal(err)
	}
	for name, id := range ids {
		err := r.Add(notifyd.Destination{Name: name, Handler: &client{cluster: l.cluster, id: id}, Lane: delivery.Lane{Concurrency: 1, Batch: 7, LongestPause: 20 * time.Millisecond, StartFrom: "beginning"}})
		if err != nil {
			l.t.Fatal(err)
		}
	}
	if err := r.Route("*", slices.Collect(maps.Keys(ids))...); err != nil {
		l.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(l.t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(settleWithin); !until(); {
		select {
		case <-tick.C:
		case <-timeout:
			l.t.Fatalf("not so: %v", ids)
		}
	}
	stop()
	if err := <-done; err != nil {
		l.t.Error(err)
	}
}

// TestExactlyOnceShared: two destinations keep their positions under one id. The first to deliver continues, exactly
// once. The other one is refused until it has a different id.
func TestExactlyOnceShared(t *testing.T) {
	t.Parallel()
	l := newExactLife(t)
	const events = 60
	l.write(events)
	refused := false
	l.live(map[string]string{"a": "same", "b": "same"}, func() bool {
		for len(l.incidents) > 0 {
			i := <-l.incidents
			refused = refused || i.Err != nil && strings.Contains(i.Err.Error(), "destinations must not share a copy: set another transactional_id")
		}
		return refused && max(l.count("a"), l.count("b")) == events
	})
	first, second := "a", "b"
	if l.count("a") == 0 {
		first, second = second, first
	}
	if l.count(second) > 0 {
		t.Errorf("%s got %d events, and %s %d", first, l.count(first), second, l.count(second))
	}
	l.live(map[string]string{first: "same", second: "own"}, func() bool { return l.count(second) == events })
}

// TestExactlyOnceOfAnotherSequence: the sequence is restarted while the position in the database is behind the copy, which a crash may
// leave at its beginning, and passes the copy again before a relay starts. The copy knows what had assigned its ids.
func TestExactlyOnceOfAnotherSequence(t *testing.T) {
	t.Parallel()
	l := newExactLife(t)
	l.write(10)
	l.more(ascending(1, 10)...)
	l.exec(`UPDATE outbox_positions SET head = 0, open = '{}' WHERE destination IN ('exactly', '')`)
	l.exec(`TRUNCATE outbox_events RESTART IDENTITY`)
	l.write(15)
	if err := l.run(25); !errors.Is(err, position.ErrIDs) || !strings.Contains(err.Error(), "positions forget exactly") {
		t.Fatalf("the relay ends with %v", err)
	}
	s, err := ops.New(l.pool, ops.Config{Schema: "public"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Forget(t.Context(), exactly, ops.Action{}); err != nil {
		t.Fatal(err)
	}
	l.lane.StartFrom = "beginning"
	l.more(ascending(1, 15)...)
}
