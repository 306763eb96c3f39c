package routes

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/routing"
	outboxsql "github.com/notifyd/notifyd/sql"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// world has a stream, some destinations, and the search, as the history of routes sees them. Their positions are
// heads without open ids, except for those of ids that are read later.
type world struct {
	*testdb.DB

	types  []string // of the events, by id; ids begin with 1
	config map[string]routing.Routes
	reads  map[string]*standing // destinations; that of the search has no name
	kept   map[int64]bool       // events without a route
	found  map[int64]bool       // those that were kept at any time
	got    map[string]map[int64]int
	always map[string]map[int64]bool // events whose type has always gone to the destination
	moves  map[string]int            // how often positions were moved back
	rows   map[string]map[int64]bool // stored deliveries; none begins before the handover of all to the destination
}

type standing struct {
	head   int64
	open   map[int64]bool // not read yet
	routes routing.Routes // by which it reads
}

func (s *standing) watermark() idset.Watermark {
	w := idset.Watermark{Head: s.head}
	for _, id := range slices.Sorted(maps.Keys(s.open)) {
		w.Open.Add(idset.Range{From: id, To: id})
	}
	return w
}

// advance takes the open ids and those up to another one. It leaves some open.
func (s *standing) advance(to int64, leaves func(id int64) bool, take func(id int64)) {
	for _, id := range slices.Sorted(maps.Keys(s.open)) {
		if !leaves(id) {
			delete(s.open, id)
			take(id)
		}
	}
	for s.head < to {
		s.head++
		if leaves(s.head) {
			s.open[s.head] = true
			continue
		}
		take(s.head)
	}
}

func (w *world) wanted() (all []Wanted) {
	for _, name := range slices.Sorted(maps.Keys(w.config)) {
		all = append(all, Wanted{name, w.config[name]})
	}
	return all
}

// tx runs f in a transaction.
func (w *world) tx(t *rapid.T, f func(context.Context, pgx.Tx) error) {
	if err := pgx.BeginFunc(w.Context(), w.Conn, func(tx pgx.Tx) error { return f(w.Context(), tx) }); err != nil {
		t.Fatal(err)
	}
}

func (w *world) ranges(t *rapid.T, destination *string) []Range {
	all, err := Read(w.Context(), w.Conn, destination)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func (w *world) write(t *rapid.T) {
	eventType := rapid.SampledFrom([]string{"a", "b", "c.d"}).Draw(t, "type")
	w.types = append(w.types, eventType)
	for name := range w.config {
		routes := w.config[name]
		w.always[name][int64(len(w.types))] = routes.Gets(eventType) && w.reads[name].routes.Gets(eventType)
	}
}

// configure changes the routes of all relays that start afterwards.
func (w *world) configure(t *rapid.T) {
	for _, name := range slices.Sorted(maps.Keys(w.config)) {
		var r routing.Routes
		for _, p := range []string{"a", "b", "c.*", "*"} {
			switch rapid.IntRange(0, 3).Draw(t, name+" "+p) {
			case 0:
				r.Patterns = append(r.Patterns, p)
			case 1:
				r.Others = append(r.Others, p)
			}
		}
		w.config[name] = r
		for id := range w.always[name] {
			w.always[name][id] = w.always[name][id] && r.Gets(w.types[id-1])
		}
	}
}

// restart makes a destination read by the configured routes.
func (w *world) restart(t *rapid.T, name string) {
	s := w.reads[name]
	w.tx(t, func(ctx context.Context, tx pgx.Tx) error {
		all, err := Read(ctx, tx, &name)
		if err != nil {
			return err
		}
		to := w.config[name]
		if last := Newest(all); last == nil || !last.Equal(&to) {
			c := Change{All: w.wanted(), To: Wanted{name, to}, Last: last, At: s.watermark(), Passed: s.watermark()}
			if err := c.Store(ctx, tx); err != nil {
				return err
			}
		}
		s.routes = to
		return Noted(ctx, tx, name)
	})
}

// read makes a destination read some events; some it leaves open, or reads of these.
func (w *world) read(t *rapid.T, name string, n int, leaves func(id int64) bool) {
	s := w.reads[name]
	if unhanded, err := Unhanded(w.Context(), w.Conn, name); err != nil {
		t.Fatal(err)
	} else if unhanded {
		return
	}
	all := w.ranges(t, &name)
	take := func(id int64) {
		eventType := w.types[id-1]
		if s.routes.Gets(eventType) || slices.ContainsFunc(all, func(p Range) bool { return p.Ended && p.Reads(eventType, id) }) {
			w.got[name][id]++
		}
	}
	s.advance(min(s.head+int64(n), int64(len(w.types))), leaves, take)
}

// rewind moves the position of a destination back.
func (w *world) rewind(t *rapid.T, name string) {
	s := w.reads[name]
	if s.head == 0 {
		return
	}
	passed, to := s.watermark(), rapid.Int64Range(0, s.head-1).Draw(t, "back to")
	w.tx(t, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := Fence(ctx, tx); err != nil {
			return err
		}
		s.head = to
		maps.DeleteFunc(s.open, func(id int64, _ bool) bool { return id > to })
		return Rewind(ctx, tx, name, s.watermark(), passed)
	})
	w.moves[name]++
}

// search makes the search read some events.
func (w *world) search(t *rapid.T, n int, leaves func(id int64) bool) {
	s := w.reads[""]
	table := NewTable(w.ranges(t, nil))
	take := func(id int64) {
		v := table.Of(w.types[id-1])
		if table.Unrouted(v, id) {
			w.kept[id], w.found[id] = true, true
		} else if due, _ := table.Due(v, id); due {
			t.Fatalf("event %d is due, and not kept", id)
		}
		if table.Settled(v, id-1) && table.Unrouted(v, id) {
			t.Fatalf("type %s is settled below event %d, which is unrouted", w.types[id-1], id)
		}
	}
	s.advance(min(s.head+int64(n), int64(len(w.types))), leaves, take)
	at := s.watermark()
	w.Exec(`UPDATE outbox_positions SET head = $1, open = $2::text::int8multirange WHERE destination = ''`, at.Head, at.Open.String())
}

// handOut gives kept events to the destinations that get them now.
func (w *world) handOut(t *rapid.T) {
	table := NewTable(w.ranges(t, nil))
	for _, id := range slices.Sorted(maps.Keys(w.kept)) {
		v := table.Of(w.types[id-1])
		if table.Gotten(v) && !table.Awaited(v) {
			delete(w.kept, id)
		}
		if !table.Gotten(v) {
			continue
		}
		for to := range table.Takers(v, id) {
			if to.Handed {
				continue
			}
			w.rows[to.Destination][id] = true
			if head := w.reads[to.Destination].head; head > to.From.Head && w.moves[to.Destination] == 0 {
				t.Fatalf("%s has read up to %d, and is handed event %d, which comes before what is above %d", to.Destination, head, id, to.From.Head)
			}
		}
	}
	at := w.reads[""].watermark()
	for to := range table.Waiting() {
		if to.From.Within(at) {
			w.tx(t, func(ctx context.Context, tx pgx.Tx) error { return Handed(ctx, tx, to) })
			for id := range w.rows[to.Destination] {
				w.got[to.Destination][id]++
			}
			clear(w.rows[to.Destination])
		}
	}
}

// TestHistory: destinations and the search read a stream at their own pace, while the configuration changes, and each begins to read by
// it at its own time. Positions are moved back. No event comes more often than that explains, unless it had no route; one that has gone to a destination all the time comes there, whatever else was changed;
// and one that comes nowhere has no route, and is kept.
func TestHistory(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, testdb.Tables{Notify: outboxsql.NotifyOff})
	db.Exec(`UPDATE outbox_mode SET mode = 'stream'`)
	rapid.Check(t, func(t *rapid.T) {
		w := &world{DB: db, config: make(map[string]routing.Routes), reads: map[string]*standing{"": {open: make(map[int64]bool)}}, kept: make(map[int64]bool), found: make(map[int64]bool)}
		w.got, w.always, w.moves = make(map[string]map[int64]int), make(map[string]map[int64]bool), make(map[string]int)
		w.rows = make(map[string]map[int64]bool)
		db.Exec(`DELETE FROM outbox_routes`)
		db.Exec(`DELETE FROM outbox_positions`)
		db.Exec(`INSERT INTO outbox_positions (destination, head, epoch) VALUES ('', 0, 1)`)
		for _, name := range []string{"x", "y", "z"} {
			w.config[name], w.reads[name] = routing.Routes{}, &standing{open: make(map[int64]bool)}
			w.got[name], w.always[name], w.rows[name] = make(map[int64]int), make(map[int64]bool), make(map[int64]bool)
		}
		w.configure(t)
		names := slices.Sorted(maps.Keys(w.config))
		for _, name := range names {
			w.reads[name].routes = w.config[name]
			w.tx(t, func(ctx context.Context, tx pgx.Tx) error {
				return Begin(ctx, tx, w.wanted(), Wanted{name, w.config[name]}, idset.Watermark{})
			})
		}
		leaves := func(int64) bool { return rapid.IntRange(0, 4).Draw(t, "leaves") == 0 }
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			name := rapid.SampledFrom(names).Draw(t, "destination")
			switch rapid.IntRange(0, 10).Draw(t, "step") {
			case 0, 1, 2:
				w.write(t)
			case 3, 4:
				w.read(t, name, rapid.IntRange(1, 5).Draw(t, "events"), leaves)
			case 5:
				w.search(t, rapid.IntRange(1, 5).Draw(t, "events"), leaves)
			case 6:
				w.configure(t)
			case 7, 8:
				w.restart(t, name)
			case 9:
				w.handOut(t)
			case 10:
				w.rewind(t, name)
			}
		}
		none := func(int64) bool { return false }
		for _, name := range names {
			w.restart(t, name)
		}
		w.search(t, len(w.types), none)
		for range 2 { // a destination that waited for its handover reads after it
			w.handOut(t)
			for _, name := range names {
				w.read(t, name, len(w.types), none)
			}
		}
		w.judge(t, names)
	})
}

func (w *world) judge(t *rapid.T, names []string) {
	for i, eventType := range w.types {
		id := int64(i + 1)
		var where []string
		wanted := false
		for _, name := range names {
			routes := w.config[name]
			wanted = wanted || routes.Gets(eventType)
			if n := w.got[name][id]; n > 0 {
				where = append(where, fmt.Sprintf("%s %d times", name, n))
				// If the unrouted scanner was behind a position that is moved back, it hands out again the events that
				// passed by routes that have ended. The events kept for one destination go to all destinations that have
				// the route then, including one that had it before and lost it.
				if n > 1+w.moves[name] && !w.found[id] {
					t.Errorf("event %d of type %s came %s", id, eventType, where)
				}
			} else if w.always[name][id] {
				t.Errorf("event %d of type %s has always gone to %s, and did not come", id, eventType, name)
			}
		}
		switch {
		case len(where) == 0 && wanted:
			t.Errorf("event %d of type %s has a route, and came nowhere; kept: %v", id, eventType, w.kept[id])
		case len(where) == 0 && !w.kept[id]:
			t.Errorf("event %d of type %s came nowhere, and is not kept", id, eventType)
		}
	}
	if t.Failed() {
		var all []string
		for _, s := range w.ranges(t, nil) {
			all = append(all, fmt.Sprintf("%+v", s))
		}
		t.Log(strings.Join(all, "\n"))
	}
}
