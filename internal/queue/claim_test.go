package queue

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/wire"
)

func TestClaimByIDs(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	all := d.Insert("a", 5)
	d.Exec(`UPDATE outbox_events SET state = 'done' WHERE id = $1`, all[1])
	d.Exec(`UPDATE outbox_events SET state = 'deferred' WHERE id = $1`, all[2])
	s := d.session(options())
	c := d.claim(s, Query{Source: SourceIDs, IDs: []int64{all[3], all[0], all[1], all[2], all[0], -1, 1 << 62}})
	got := ids(c)
	slices.Sort(got)
	if !slices.Equal(got, []int64{all[0], all[3]}) {
		t.Errorf("claimed %v of %v", got, all)
	}
	for _, w := range c.Work {
		if !w.Fresh || w.Missing || w.Destination != "" || w.Delay != 0 || w.Failures != 0 {
			t.Errorf("claimed %+v", w)
		}
	}
	d.settle(s, &Settlement{})
	if c := d.claim(s, Query{Source: SourceIDs}); len(c.Work) != 0 {
		t.Errorf("claimed %v of no ids", ids(c))
	}
}

func TestSweep(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	a := d.Insert("a", 3)
	b := d.Insert("b", 3)
	c := d.Insert("c", 3)
	s := d.session(options())
	for _, q := range []struct {
		name string
		q    Query
		want []int64
	}{
		{"all", Query{Limit: 100}, slices.Concat(a, b, c)},
		{"limit", Query{Limit: 2}, a[:2]},
		{"no room", Query{Limit: 0}, nil},
		{"after", Query{Limit: 3, After: a[1]}, []int64{a[2], b[0], b[1]}},
		{"after the end", Query{Limit: 3, After: c[2]}, nil},
		{"from the very beginning", Query{Limit: 1, After: -1 << 63}, a[:1]},
		{"skip", Query{Limit: 4, Skip: []string{"a", "x"}}, []int64{b[0], b[1], b[2], c[0]}},
		{"skip all", Query{Limit: 4, Skip: []string{"a", "b", "c"}}, nil},
		{"up to", Query{Limit: 9, After: a[0], Upto: b[0]}, []int64{a[1], a[2], b[0]}},
	} {
		q.q.Source = SourceSweep
		claimed := d.claim(s, q.q)
		if got := ids(claimed); !slices.Equal(got, q.want) {
			t.Errorf("%s: claimed %v, want %v", q.name, got, q.want)
		}
		if claimed.Xmin == 0 || claimed.Xmax < claimed.Xmin {
			t.Errorf("%s: snapshot %d to %d", q.name, claimed.Xmin, claimed.Xmax)
		}
		d.settle(s, &Settlement{})
	}
}

// TestSnapshotOfASweep: the sweep sees the writes of every transaction below Xmin.
func TestSnapshotOfASweep(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	s := d.session(options())
	d.Exec(`BEGIN`)
	xid := testdb.One[uint64](d, d.Conn, `SELECT pg_current_xact_id()::text::bigint`)
	d.Insert("a", 1)
	if c := d.claim(s, Query{Source: SourceSweep, Limit: 1}); c.Xmin > xid || len(c.Work) > 0 {
		t.Errorf("xmin %d and %d events while %d is open", c.Xmin, len(c.Work), xid)
	}
	d.Exec(`COMMIT`)
	for { // transactions of other tests, in other databases, hold it back too
		c := d.claim(s, Query{Source: SourceSweep, Limit: 1})
		if len(c.Work) != 1 {
			t.Fatalf("claimed %d events after %d has ended", len(c.Work), xid)
		}
		if c.Xmin > xid {
			break
		}
		d.settle(s, &Settlement{})
	}
}

func TestTwoSessionsShare(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	all := d.Insert("a", 6)
	d.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) SELECT id, 'x', 'a', 'retry' FROM outbox_events WHERE id > $1`, all[3])
	first, second := d.session(options()), d.session(options())
	if got := d.sweep(first, 2); !slices.Equal(got, all[:2]) {
		t.Errorf("the first claimed %v", got)
	}
	d.keepOpen(first)
	if got := d.sweep(second, 2); !slices.Equal(got, all[2:4]) {
		t.Errorf("the second claimed %v", got)
	}
	d.keepOpen(second)
	if got := ids(d.claim(d.session(options()), Query{Source: SourceIDs, IDs: all[:4]})); len(got) != 0 {
		t.Errorf("a third claimed %v", got)
	}
	d.settle(second, &Settlement{})

	// A dead connection releases its claim.
	if err := first.conn.PgConn().Conn().Close(); err != nil {
		t.Fatal(err)
	}
	d.Exec(`SELECT FROM outbox_events FOR UPDATE`) // waits for the server to notice
	if got := d.sweep(second, 2); !slices.Equal(got, all[:2]) {
		t.Errorf("claimed %v after the first had died", got)
	}
	d.settle(second, &Settlement{})

	third := d.session(options())
	if got := ids(d.claim(second, dueFor("x"))); len(got) != 2 {
		t.Errorf("the second claimed deliveries %v", got)
	}
	if got := ids(d.claim(third, dueFor("x"))); len(got) != 0 {
		t.Errorf("the third claimed deliveries %v", got)
	}
	d.settle(second, &Settlement{})
}

func TestClaimDue(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	all := d.Insert("a", 8)
	d.Exec(`UPDATE outbox_events SET state = 'deferred'`)
	d.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, attempts, available_at) VALUES
		($1, 'x', 'a', 'retry', 3, now() - interval '1 s'), ($2, 'x', 'a', 'retry', 0, now() - interval '3 s'),
		($3, 'x', 'a', 'retry', 0, now() - interval '2 s'), ($4, 'y', 'a', 'retry', 0, now() - interval '1 s'),
		($5, '', 'a', 'retry', 0, now() - interval '1 s'), ($6, 'x', 'a', 'retry', 0, now() + interval '1 hour'),
		($7, 'x', 'a', 'dead', 9, now() - interval '1 s'), ($8, '', 'a', 'unrouted', 0, now() - interval '1 s')`,
		all[0], all[1], all[2], all[3], all[4], all[5], all[6], all[7])
	d.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES ($1, 'y', 'a', 'parked')`, all[0])
	d.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (4242, 'y', 'a', 'retry')`)
	s := d.session(options())
	claim := func(wanted map[string]int, want ...string) Claimed {
		t.Helper()
		c := d.claim(s, Query{Source: SourceDue, Wanted: wanted})
		got := []string{}
		for _, w := range c.Work {
			got = append(got, fmt.Sprintf("%d/%s %d %t", w.Event.ID, w.Destination, w.Failures, w.Missing))
			if w.Fresh || !w.Missing && (w.Event.Type != "a" || len(w.Event.Payload) == 0 || w.Event.CreatedAt.IsZero()) {
				t.Errorf("claimed %+v", w)
			}
		}
		if len(wanted) > 1 {
			slices.Sort(got)
			slices.Sort(want)
		}
		if !slices.Equal(got, want) {
			t.Errorf("wanted %v: claimed %q, want %q", wanted, got, want)
		}
		d.settle(s, &Settlement{})
		return c
	}
	line := func(i int, rest string) string { return fmt.Sprintf("%d/%s", all[i], rest) }
	claim(map[string]int{"x": 2}, line(1, "x 0 false"), line(2, "x 0 false"))
	claim(map[string]int{"x": 0}, []string{}...)
	claim(map[string]int{"z": 5}, []string{}...)
	claim(nil, []string{}...)
	claim(map[string]int{"": 5}, line(4, " 0 false"))
	c := claim(map[string]int{"x": 10, "y": 10, "": 10}, line(0, "x 3 false"), line(1, "x 0 false"), line(2, "x 0 false"),
		line(3, "y 0 false"), line(4, " 0 false"), "4242/y 0 true")
	if c.NextDue <= 59*time.Minute || c.NextDue > time.Hour {
		t.Errorf("next due in %v, want an hour", c.NextDue)
	}
	if c := claim(map[string]int{"": 1}, line(4, " 0 false")); c.NextDue >= 0 {
		t.Errorf("next due in %v, want none", c.NextDue)
	}
}

// TestNothingFallsBetweenDueAndNextDue: a delivery that becomes due while the claim runs is either
// claimed or announced. The two conditions must use the same time.
func TestNothingFallsBetweenDueAndNextDue(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	d := newDB(t)
	id := d.Insert("a", 1)[0]
	d.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES ($1, 'x', 'a', 'retry')`, id)
	s := d.session(options())
	for i := range 1000 {
		d.Exec(`UPDATE outbox_deliveries SET available_at = clock_timestamp() + $1 * interval '1 microsecond'`, 200+i%500)
		for {
			c := d.claim(s, dueFor("x"))
			if len(c.Work) > 0 {
				d.settle(s, &Settlement{})
				break
			}
			if c.NextDue < 0 {
				t.Fatalf("round %d: neither claimed nor announced", i)
			}
		}
	}
}

func TestWhatIsClaimed(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	created := time.Date(1969, 7, 20, 20, 17, 40, 123456000, time.UTC)
	payloads := []string{
		"\t{ \"b\" :1,\r\n\"a\": 1e400, \"a\": \"\\u0000\\ud800\" }  ", `null`, `"` + strings.Repeat("ü", 5000) + `"`,
		`"` + strings.Repeat("x", 70_000) + `"`, `1`, `2`,
	}
	for i, p := range payloads {
		d.Exec(`INSERT INTO outbox_events (id, event_type, aggregate_type, aggregate_id, payload, headers, created_at) VALUES ($1, $2, $3, $4, $5::text::json,
			'{"a": "text ü", "n": 1.50, "b": true, "z": null, "o": {"k": [1, 2]}, "": "\"quoted\""}', $6)`,
			i+1, "Ä.type", `o"'\`, "1042", p, created.Add(time.Duration(i)*time.Microsecond))
	}
	d.Exec(`INSERT INTO outbox_events (id, event_type, payload, headers) VALUES (100, 'bare', '{}', '{}')`)
	s := d.session(options())
	c := d.claim(s, Query{Source: SourceSweep, Limit: 100})
	if len(c.Work) != len(payloads)+1 {
		t.Fatalf("claimed %d", len(c.Work))
	}
	headers := map[string]string{"a": "text ü", "n": "1.50", "b": "true", "z": "null", "o": `{"k": [1, 2]}`, "": `"quoted"`}
	check := func(w Work, i int) {
		t.Helper()
		e := w.Event
		if e.Type != "Ä.type" || e.AggregateType != `o"'\` || e.AggregateID != "1042" || !e.CreatedAt.Equal(created.Add(time.Duration(i)*time.Microsecond)) {
			t.Errorf("event %d: %s %s %s %v", i, e.Type, e.AggregateType, e.AggregateID, e.CreatedAt)
		}
		if string(e.Payload) != payloads[i] {
			t.Errorf("event %d: payload %.200q, want %.200q", i, e.Payload, payloads[i])
		}
		if !maps.Equal(e.Headers, headers) {
			t.Errorf("event %d: headers %q, want %q", i, e.Headers, headers)
		}
	}
	for i := range payloads {
		check(c.Work[i], i)
		// Appending to one payload must not reach into the next one.
		_ = append(c.Work[i].Event.Payload, "overwritten"...)
	}
	for i := range payloads {
		check(c.Work[i], i)
	}
	if e := c.Work[len(payloads)].Event; e.AggregateType != "" || e.AggregateID != "" || len(e.Headers) != 0 || string(e.Payload) != "{}" {
		t.Errorf("bare event: %+v", e)
	}
	// The same for deliveries.
	s2 := []deliveries.Entry{}
	deferred := []int64{}
	for i := range payloads {
		s2, deferred = append(s2, entry(int64(i+1), "x", deliveries.Retry)), append(deferred, int64(i+1))
	}
	d.settle(s, &Settlement{Deferred: deferred, Put: s2})
	for _, w := range d.claim(s, dueFor("x")).Work {
		check(w, int(w.Event.ID-1))
	}
}

func TestDelayedEvents(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	for id, c := range []struct {
		at       string
		from, to time.Duration
	}{
		{"now() - interval '1 s'", 0, 0},
		{"'-infinity'", 0, 0},
		{"'4713-01-01 BC'", 0, 0},
		{"now() + interval '1 hour'", 59 * time.Minute, time.Hour},
		{"now() + interval '200 years'", 90 * 365 * 24 * time.Hour, 1<<63 - 1},
		{"'9999-12-31'", 90 * 365 * 24 * time.Hour, 1<<63 - 1},
		{"'294276-12-31'", 90 * 365 * 24 * time.Hour, 1<<63 - 1},
		{"'infinity'", 90 * 365 * 24 * time.Hour, 1<<63 - 1},
	} {
		d.Exec(`INSERT INTO outbox_events (id, event_type, payload, available_at) VALUES ($1, 'a', '1', `+c.at+`)`, id)
		s := d.session(options())
		for _, q := range []Query{
			{Source: SourceSweep, After: int64(id) - 1, Upto: int64(id), Limit: 1},
			{Source: SourceIDs, IDs: []int64{int64(id)}},
		} {
			claimed, err := s.Claim(t.Context(), q)
			if err != nil {
				t.Errorf("%s: %v", c.at, err)
				continue
			}
			if got := max(0, claimed.Work[0].Delay); got < c.from || got > c.to {
				t.Errorf("%s: delay %v, want %v to %v", c.at, got, c.from, c.to)
			}
			if q.Source == SourceSweep {
				d.settle(s, &Settlement{})
				continue
			}
			put := entry(int64(id), "", deliveries.Retry)
			put.Delay = claimed.Work[0].Delay
			d.settle(s, &Settlement{Deferred: []int64{int64(id)}, Put: []deliveries.Entry{put}})
		}
		s.Close(t.Context())
	}
	c := d.claim(d.session(options()), dueFor(""))
	if got := ids(c); !slices.Equal(got, []int64{0, 1, 2}) || c.NextDue < 59*time.Minute || c.NextDue > time.Hour {
		t.Errorf("due are %v, the next one in %v", got, c.NextDue)
	}
}

// TestOddTimesOfDeliveries: a time written by hand must not make the claim of all others fail.
func TestOddTimesOfDeliveries(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	d.Insert("a", 2)
	for _, at := range []string{"infinity", "294276-12-31", "9999-12-31"} {
		d.Exec(`DELETE FROM outbox_deliveries`)
		d.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, available_at) VALUES (1, 'x', 'a', 'retry', '-infinity'), (2, 'x', 'a', 'retry', $1::text::timestamptz)`, at)
		s := d.session(options())
		c, err := s.Claim(t.Context(), dueFor("x"))
		if err != nil || len(c.Work) != 1 || c.NextDue < time.Hour {
			t.Errorf("%s: claimed %v, next due in %v, %v", at, ids(c), c.NextDue, err)
		}
		s.Close(t.Context())
	}
}

// TestOddHeaders: PostgreSQL nests deeper than encoding/json reads.
func TestOddHeaders(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	deep := `{"a": ` + strings.Repeat("[", 12_000) + strings.Repeat("]", 12_000) + `}`
	d.Exec(`INSERT INTO outbox_events (event_type, payload, headers) VALUES ('a', '1', $1::text::jsonb), ('a', '2', '{"b": "c"}')`, deep)
	c := d.claim(d.session(options()), Query{Source: SourceSweep, Limit: 5})
	if len(c.Work) != 2 || c.Work[0].Event.Headers[wire.UnreadableHeaders] != deep || c.Work[1].Event.Headers["b"] != "c" {
		t.Errorf("claimed %d events", len(c.Work))
	}
}
