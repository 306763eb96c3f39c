package tail

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/session"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestRead: the values of a row are returned, and no more rows than requested.
func TestRead(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	r := follow(l, 0, nil)
	r.expect("nothing", "{}")
	l.Exec(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload, headers, created_at, traceparent) VALUES
		('a', 'order', '1', '{"n":  1}', NULL, '2031-03-01 12:00:00.000001+00', NULL),
		('b', NULL, NULL::text, '[]', '{"k": "v", "n": 1}', now(), '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01')`)
	_, b := r.read(Query{})
	if b.Seen != 2 || b.Full || b.Last != 2 || r.Head() != 2 || b.Delays != nil || b.Bytes < 40 {
		t.Errorf("%+v", b)
	}
	a := b.Events[0]
	if want := time.Date(2031, 3, 1, 12, 0, 0, 1000, time.UTC); a.Type != "a" || a.AggregateType != "order" || a.AggregateID != "1" ||
		string(a.Payload) != `{"n":  1}` || a.Headers != nil || !a.CreatedAt.Equal(want) {
		t.Errorf("%+v", a)
	}
	c := b.Events[1]
	if c.Type != "b" || c.AggregateType != "" || c.AggregateID != "" || string(c.Payload) != `[]` || len(c.Headers) != 3 || c.Headers["n"] != "1" ||
		!strings.HasPrefix(c.Headers["traceparent"], "00-4bf9") {
		t.Errorf("%+v", c)
	}
	r.expect("again", "{}")
}

func TestDelays(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	r := follow(l, 0, nil)
	l.Exec(`INSERT INTO outbox_events (event_type, payload, available_at) VALUES
		('a', '1', NULL), ('a', '1', now() - interval '1 hour'), ('a', '1', now() + interval '1 hour'), ('a', '1', 'infinity'), ('a', '1', '-infinity')`)
	for _, skip := range [][]string{nil, {"x"}} {
		r.Reader = NewReader(0, nil, r.w)
		_, b := r.read(Query{Skip: skip})
		if len(b.Delays) != 5 || b.Delays[0] != 0 || b.Delays[1] > -time.Hour || b.Delays[4] > -99*365*24*time.Hour {
			t.Fatal(b.Delays)
		}
		if d := b.Delays[2]; d < 50*time.Minute || d > time.Hour {
			t.Error(d)
		}
		if d := b.Delays[3]; d < 99*365*24*time.Hour || d > 101*366*24*time.Hour {
			t.Error(d)
		}
	}
}

// TestSkip: of types that are not wanted only the id is read, with gaps and without.
func TestSkip(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	l.Exec(`INSERT INTO outbox_events (id, event_type, payload) SELECT i, CASE WHEN i % 2 = 0 THEN 'big' ELSE 'a' END,
		to_json(CASE WHEN i % 2 = 0 THEN repeat('x', 1000000) ELSE '' END) FROM generate_series(1, 8) i WHERE i <> 3`)
	l.Exec(`SELECT setval('outbox_events_id_seq', 8)`)
	for _, open := range []idset.Set{nil, {{From: 3, To: 5}}} {
		r := follow(l, 0, open)
		if open != nil {
			r.Reader = NewReader(5, open, r.w)
		}
		r.rowSize.Saw(1, 1) // the smallest size is assumed after some reads
		for range 20 {
			r.rowSize.Saw(1, 1)
		}
		ids, b := r.read(Query{Skip: []string{"big", "other"}, Bytes: 1000})
		want, seen, left := []int64{1, 5, 7}, 7, "{[3,4)}"
		if open != nil {
			want, seen = []int64{5, 7}, 5
		}
		if !slices.Equal(ids, want) || b.Seen != seen || b.Full || b.Bytes > 200 || r.Head() != 8 || r.Gaps().String() != left {
			t.Errorf("%v: %v, seen %d, %d bytes, gaps %v", open, ids, b.Seen, b.Bytes, r.Gaps())
		}
	}
}

// TestPassed: a reader of a range that another one has passed reads the open ids of the range, and the rest up to the
// last id, each event once, and waits for none.
func TestPassed(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	l.Exec(`INSERT INTO outbox_events (id, event_type, payload) SELECT i, CASE WHEN i % 7 = 0 THEN 'other' ELSE 'a' END, '1' FROM generate_series(1, 5000) i WHERE i % 3 > 0 AND i NOT BETWEEN 2000 AND 4000`)
	l.Exec(`SELECT setval('outbox_events_id_seq', 5000)`)
	for _, c := range []struct {
		head, upto int64
		open       idset.Set
	}{
		{0, 5000, nil},
		{0, 3000, nil}, // the range ends at an id without an event
		{1000, 4500, idset.Set{{From: 5, To: 5}, {From: 17, To: 400}, {From: 999, To: 1000}}},
		{4500, 4500, idset.Set{{From: 5, To: 5}, {From: 17, To: 400}, {From: 1500, To: 3500}, {From: 4500, To: 4500}}},
		{4500, 4500, nil},
		{-10, -1, nil}, // there are such ids, too
	} {
		for _, q := range []Query{{Limit: 13}, {Limit: 100, Rows: 1000, Skip: []string{"other"}}, {Limit: 100, Bytes: 50}} {
			q.Assigned, q.Passed = c.upto, true
			r := follow(l, 0, nil)
			r.Reader = NewReader(c.head, c.open, r.w)
			var got, want []int64
			for reads := 0; r.Head() < c.upto || r.Gaps().Len() > 0; reads++ {
				ids, b := r.read(q)
				got = append(got, ids...)
				if reads > 5000 || r.Head() > c.upto {
					t.Fatalf("%+v, %+v: at %d after %d reads, gaps %v", c, q, r.Head(), reads, r.Gaps())
				}
				if _, looks := r.NextScan(); looks && r.Gaps().Len() == 0 {
					t.Errorf("%+v: it scans without a gap", c)
				}
				if !b.Full && (r.Head() < c.upto || r.Gaps().Len() > 0) && b.Seen == 0 {
					t.Errorf("%+v, %+v: a read found nothing, and stays at %d, gaps %v", c, q, r.Head(), r.Gaps())
				}
			}
			for id := int64(1); id <= c.upto; id++ {
				if id%3 > 0 && (id < 2000 || id > 4000) && (id > c.head || c.open.Contains(id)) && (q.Skip == nil || id%7 > 0) {
					want = append(want, id)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%+v, %+v: read %d events, want %d: %v", c, q, len(got), len(want), got)
			}
		}
	}
}

// TestShards: each event is read by one of several shards, and the events of an aggregate by the same one, with gaps and without.
func TestShards(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	l.Exec(`INSERT INTO outbox_events (id, event_type, aggregate_type, aggregate_id, payload)
		SELECT i, CASE WHEN i % 10 = 0 THEN 'other' ELSE 'a' END, nullif(left('order', (i / 90) % 7), ''), CASE WHEN i % 3 > 0 THEN nullif((i % 50)::text, '1') END,
			to_json(CASE WHEN i % 10 = 0 THEN repeat('x', 100000) ELSE '' END) FROM generate_series(1, 300) i WHERE i <> 7`)
	l.Exec(`INSERT INTO outbox_events (id, event_type, aggregate_type, aggregate_id, payload) VALUES (301, 'a', 'a/b', 'c', '1'), (302, 'a', 'a', 'b/c', '1')`)
	l.Exec(`SELECT setval('outbox_events_id_seq', 302)`)
	for _, of := range []int{1, 3, 64} {
		read := make(map[int64]int) // shard by id
		shards := make(map[string]int)
		for part := range of {
			r := follow(l, 0, nil)
			q := Query{Limit: 40, Rows: 400, Skip: []string{"other"}, Shard: Shard{part, of}}
			for full := true; full; {
				_, b := r.read(q)
				if len(b.Hashes) != len(b.Events) {
					t.Fatalf("%d hashes of %d events", len(b.Hashes), len(b.Events))
				}
				for i, e := range b.Events {
					if _, twice := read[e.ID]; twice || e.Type != "a" || pgschema.ShardOf(b.Hashes[i], of) != part {
						t.Errorf("shard %d of %d has event %+v, hash %d", part, of, e, b.Hashes[i])
					}
					read[e.ID] = part
					if e.AggregateID == "" {
						continue
					}
					name := e.AggregateType + "/" + e.AggregateID
					if other, is := shards[name]; is && other != part {
						t.Errorf("%q is in shards %d and %d of %d", name, part, other, of)
					}
					shards[name] = part
				}
				full = b.Full
			}
			if r.Head() != 302 || r.Gaps().String() != "{[7,8)}" {
				t.Errorf("shard %d of %d is at %d, gaps %v", part, of, r.Head(), r.Gaps())
			}
			r.Reader = NewReader(302, idset.Set{{From: 5, To: 12}}, r.w)
			ids, _ := r.read(q)
			for _, id := range ids {
				if id < 5 || id > 12 || read[id] != part {
					t.Errorf("shard %d of %d has event %d in a gap", part, of, id)
				}
			}
		}
		if len(read) != 271 {
			t.Errorf("%d shards have %d events", of, len(read))
		}
	}
}

// TestRows: if most rows are of types to skip, more of them are read for the requested events, and
// never more events.
func TestRows(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	l.Exec(`INSERT INTO outbox_events (event_type, payload) SELECT CASE WHEN i % 4 = 0 OR i > 400 THEN 'a' ELSE 'b' END, '1' FROM generate_series(1, 500) i`)
	r := follow(l, 0, nil)
	q := Query{Limit: 10, Rows: 100, Skip: []string{"b"}}
	var got []int64
	var seen []int
	for full := true; full; {
		ids, b := r.read(q)
		if len(ids) > q.Limit {
			t.Fatalf("%d events", len(ids))
		}
		got, seen, full = append(got, ids...), append(seen, b.Seen), b.Full
	}
	if seen[0] != 10 || seen[1] < 4*q.Limit || len(seen) > 25 {
		t.Errorf("rows of each read: %v", seen)
	}
	if len(got) != 200 || got[0] != 4 || got[99] != 400 || got[199] != 500 || r.Head() != 500 || r.Gaps().Len() != 0 {
		t.Errorf("%d events: %v, up to %d, gaps %v", len(got), got, r.Head(), r.Gaps())
	}
}

// TestLimits: rows that a limit or a bound of bytes cuts off were not read. None of them is dead,
// and the head does not pass them.
func TestLimits(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	l.Exec(`INSERT INTO outbox_events (id, event_type, payload) SELECT i, 'a', to_json(repeat('x', 1000)) FROM generate_series(1, 20) i WHERE i NOT IN (3, 4, 9)`)
	l.Exec(`SELECT setval('outbox_events_id_seq', 20)`)
	for _, q := range []Query{{Limit: 1}, {Limit: 2}, {Limit: 3}, {Limit: 1000, Bytes: 1}, {Limit: 1000, Bytes: 2500}, {Limit: 3, Bytes: 5000}, {Limit: 1000}} {
		// Ids up to 10 were open, and no transaction can fill them now.
		r := follow(l, 10, idset.Set{{From: 1, To: 5}, {From: 7, To: 10}})
		r.scan()
		var all []int64
		for n := 0; ; n++ {
			ids, b := r.read(q)
			all = append(all, ids...)
			if q.Bytes > 0 && len(ids) > 1 && b.Bytes > q.Bytes || len(ids) > q.Limit {
				t.Errorf("%+v: %d of %d bytes", q, len(ids), b.Bytes)
			}
			last := int64(math.MaxInt64)
			if len(all) > 0 {
				last = all[len(all)-1]
			}
			for id := range int64(20) { // ids that may still get an event are open, or above the head
				if id > last && id < 10 && id != 6 && id != 9 && !r.Gaps().Contains(id) {
					t.Fatalf("%+v: %d is no gap any more after %d", q, id, last)
				}
			}
			if !b.Full {
				break
			}
			if n > 40 {
				t.Fatalf("%+v: no end", q)
			}
		}
		if want := []int64{1, 2, 5, 7, 8, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}; !slices.Equal(all, want) || len(r.Gaps()) > 0 {
			t.Errorf("%+v: read %v, left %v", q, all, r.Gaps())
		}
	}
}

// TestLimitFollowsSize: if rows are large, fewer are requested.
func TestLimitFollowsSize(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	l.Exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'a', to_json(repeat('x', 10000)) FROM generate_series(1, 300)`)
	r := follow(l, 0, nil)
	for n := 0; ; n++ {
		limit, _ := r.bounds(Query{Limit: 1000, Bytes: 100_000})
		if limit > 20 {
			t.Errorf("read %d asks for %d rows", n, limit)
		}
		if ids, b := r.read(Query{Limit: 1000, Bytes: 100_000}); len(ids) > 10 {
			t.Errorf("read %d: %d rows", n, len(ids))
		} else if !b.Full {
			break
		}
	}
	if r.Head() != 300 {
		t.Error(r.Head())
	}
	if limit, _ := r.bounds(Query{}); limit != 1 {
		t.Errorf("no limit is %d", limit)
	}
}

// TestLeadingGap: ids missing in front of the first row are a gap as well.
func TestLeadingGap(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	w := l.Dial()
	l.On(w, `BEGIN`)
	l.On(w, insert)
	l.Exec(insert)
	r := follow(l, 0, nil)
	r.expect("an open one in front", "{[1,2)}", 2)
	r.scan()
	r.expect("it is open still", "{[1,2)}")
	l.On(w, `COMMIT`)
	r.expect("it is committed", "{}", 1)
}

// TestNextPartition: ids that jump by four billion leave one range, which a scan ends.
func TestNextPartition(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	day := time.Date(2031, 3, 1, 12, 0, 0, 0, time.UTC)
	if err := outboxsql.Partition(t.Context(), l.Conn, "public", outboxsql.PartitionOptions{Now: day}); err != nil {
		t.Fatal(err)
	}
	l.Exec(insert)
	r := follow(l, 0, nil)
	_, b := r.read(Query{})
	first := b.Last
	for range 3 {
		l.Exec(`SELECT outbox_partitions_extend($1, 3)`, day.AddDate(0, 0, 1))
	}
	l.Exec(insert)
	_, b = r.read(Query{})
	if b.Last < first+1<<31 || len(r.Gaps()) > 2 || r.Gaps().IDs() < 1<<31 {
		t.Fatalf("after %d came %d, gaps %v", first, b.Last, r.Gaps())
	}
	r.scan()
	r.expect("nobody is there", "{}")
}

// TestOrderIsChecked: impossible rows are an error, and the end of the reader.
func TestOrderIsChecked(t *testing.T) {
	t.Parallel()
	p := fetch{head: 10, last: math.MinInt64, gaps: []gap{{idset.Range{From: 2, To: 3}, nil}, {idset.Range{From: 7, To: 7}, nil}}}
	for _, id := range []int64{3, 7, 12} {
		if err := p.place(id); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(p.missing, []idset.Range{{From: 11, To: 11}}) || !slices.Equal(p.hits, []int64{3, 7}) || p.head != 12 {
		t.Errorf("%+v", p)
	}
	for _, c := range [][]int64{{1}, {4}, {8}, {10}, {3, 3}, {3, 2}, {12, 11}, {12, 12}, {12, 7}} {
		p := fetch{head: 10, last: math.MinInt64, gaps: []gap{{idset.Range{From: 2, To: 3}, nil}, {idset.Range{From: 7, To: 7}, nil}}}
		var err error
		for _, id := range c {
			err = errors.Join(err, p.place(id))
		}
		if !errors.Is(err, ErrOrder) {
			t.Errorf("%v: %v", c, err)
		}
	}
}

func TestFailedReader(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	l.Exec(insert)
	r := follow(l, 0, nil)
	l.Exec(`SELECT pg_terminate_backend($1, 60000)`, int64(r.on.PgConn().PID()))
	if _, err := r.Read(t.Context(), r.on, Query{Limit: 1}); err == nil {
		t.Error("read on a dead connection")
	}
	if _, err := r.Read(t.Context(), session.Direct(l.Relay()), Query{Limit: 1}); !errors.Is(err, errFailed) || r.Head() != 0 {
		t.Errorf("read after an error: %v", err)
	}
}

// TestReadAhead: a read that was begun changes the reader when it is taken, and is dropped by a scan, by another read and by an
// error, as if it had not been.
func TestReadAhead(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	r := follow(l, 0, nil)
	begin := func() {
		t.Helper()
		r.Begin(t.Context(), r.on, Query{Limit: 10})
		r.Wait()
		if _, ok := r.Begun(); !ok {
			t.Error("no read was begun")
		}
	}
	if _, err := r.Take(); err == nil {
		t.Error("took a read that was not begun")
	}
	r = follow(l, 0, nil)
	l.Exec(insert)
	begin()
	l.Exec(insert)
	if r.Head() != 0 {
		t.Errorf("the head is %d before the read is taken", r.Head())
	}
	b, err := r.Take()
	if err != nil || len(b.Events) != 1 || b.Events[0].ID != 1 || r.Head() != 1 {
		t.Errorf("took %+v, %v; head %d", b, err, r.Head())
	}
	begin()
	r.scan()
	if _, ok := r.Begun(); ok || r.Head() != 1 {
		t.Errorf("after a scan the read is still there; head %d", r.Head())
	}
	begin()
	r.expect("a read beside one that was begun", "{}", 2)
	l.Exec(`SELECT pg_terminate_backend($1, 60000)`, int64(r.on.PgConn().PID()))
	begin()
	if r.Drop(); r.Head() != 2 {
		t.Errorf("head %d", r.Head())
	}
	if _, err := r.Read(t.Context(), session.Direct(l.Relay()), Query{Limit: 1}); !errors.Is(err, errFailed) {
		t.Errorf("read after an error: %v", err)
	}
}

// fills are the states of the table when a plan is made.
func fills() map[string]string {
	const many = `INSERT INTO outbox_events (event_type, payload) SELECT 'a', to_json(repeat('x', 200)) FROM generate_series(1, 200000);`
	return map[string]string{
		"empty": ``, "never analysed": many, "analysed": many + `ANALYZE outbox_events`, "analysed while empty": `ANALYZE outbox_events; ` + many,
	}
}

// TestPlans: each statement reads the primary key, in its order, without a sort, and after a full
// read only the partitions that it needs.
func TestPlans(t *testing.T) {
	t.Parallel()
	for _, partitioned := range []bool{false, true} {
		for fill, sql := range fills() {
			t.Run(fmt.Sprintf("partitioned=%v/%s", partitioned, fill), func(t *testing.T) {
				t.Parallel()
				if partitioned {
					testenv.Long(t)
				}
				l := newLog(t)
				if partitioned {
					if err := outboxsql.Partition(t.Context(), l.Conn, "public", outboxsql.PartitionOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				l.Exec(`ALTER TABLE ` + map[bool]string{false: `outbox_events`, true: `outbox_events_default`}[partitioned] + ` SET (autovacuum_enabled = off)`)
				for s := range strings.SplitSeq(sql, ";") {
					l.Exec(s)
				}
				plans(l, testdb.One[int64](l, l.Conn, `SELECT coalesce(min(id), 4294967296) FROM outbox_events`), partitioned)
			})
		}
	}
}

func plans(l *testdb.DB, first int64, partitioned bool) {
	l.Helper()
	conn := l.Relay()
	for _, c := range []struct {
		gaps, skip, shard bool
		args              string
	}{
		{false, false, false, "%d, %d, 1000"},
		{false, true, false, "%d, %d, 1000, '{x}'"},
		{false, false, true, "%d, %d, 1000, '{}', 4, 1"},
		{true, false, false, "%d, %d, 1000, '{%[1]d}', '{%[1]d}'"},
		{true, true, false, "%d, %d, 1000, '{x}', '{%[1]d}', '{%[1]d}'"},
		{true, true, true, "%d, %d, 1000, '{x}', 4, 1, '{%[1]d}', '{%[1]d}'"},
	} {
		for _, upto := range []int64{first + 8000, first + 8001, math.MaxInt64 - 1, math.MaxInt64} {
			statement := shape{gaps: c.gaps, skip: c.skip, shard: c.shard, waits: upto%2 == 0, limit: 1 << 20}
			name, args := statement.name(), fmt.Sprintf(c.args, first, upto)
			if statement.waits {
				args += ", '{5,6}'"
			}
			if _, err := conn.Prepare(l.Context(), name, statement.statement()); err != nil {
				l.Fatal(err)
			}
			plan := strings.Join(testdb.List[string](l, conn, `EXPLAIN (COSTS off) EXECUTE `+name+`(`+args+`)`), "\n")
			for _, bad := range []string{"Sort\n", "Seq Scan", "Bitmap", "Gather", "Materialize"} {
				if strings.Contains(plan, bad) {
					l.Errorf("%s up to %d: %s in\n%s", name, upto, bad, plan)
				}
			}
			if partitioned && upto < math.MaxInt64-1 && !strings.Contains(plan, "Subplans Removed: 4") {
				l.Errorf("%s up to %d reads everywhere:\n%s", name, upto, plan)
			}
			if scans := strings.Count(plan, "Index Scan"); !partitioned && scans != map[bool]int{false: 1, true: 2}[c.gaps] {
				l.Errorf("%s up to %d: %d scans in\n%s", name, upto, scans, plan)
			}
		}
	}
}

// TestLooksAhead: a reader continues at the end of its lookahead.
func TestLooksAhead(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	l.Exec(`INSERT INTO outbox_events (id, event_type, payload) SELECT i, 'a', '1' FROM generate_series(1, 100) i`)
	l.Exec(`INSERT INTO outbox_events (id, event_type, payload) SELECT i, 'a', '1' FROM generate_series(1000000, 1000100) i`)
	r := follow(l, 0, nil)
	if _, b := r.read(Query{}); b.Seen > 0 || r.Head() > 0 {
		t.Errorf("%d events were read that the sequence has not assigned, up to %d", b.Seen, r.Head())
	}
	l.Exec(`SELECT setval('outbox_events_id_seq', 1000100)`)
	n := 0
	for full := true; full; {
		ids, b := r.read(Query{Limit: 10})
		n, full = n+len(ids), b.Full
	}
	if n != 201 || r.Head() != 1000100 || r.Gaps().String() != "{[101,1000000)}" {
		t.Errorf("%d events up to %d, gaps %v", n, r.Head(), r.Gaps())
	}
}

// TestReachFirstGap: a read neither finds nor ends anything above the first gap. If the first gaps are clear, it ends them
// together.
func TestReachFirstGap(t *testing.T) {
	t.Parallel()
	r := follow(newLog(t), 0, nil)
	writers := []*pgx.Conn{r.Dial(), r.Dial(), r.Dial()}
	for _, w := range writers {
		testdb.Exec(t, w, `BEGIN`)
		testdb.Exec(t, w, insert)
		r.Exec(insert)
	}
	r.read(Query{})
	expect := func(gaps string, want ...int64) {
		t.Helper()
		ids, b := r.read(Query{Reach: ReachFirstGap})
		if !slices.Equal(ids, want) || r.Gaps().String() != gaps || b.Full || r.Head() != 6 {
			t.Errorf("read %d, want %d; left %v; head %d, full %v", ids, want, r.Gaps(), r.Head(), b.Full)
		}
	}
	testdb.Exec(t, writers[0], `COMMIT`)
	testdb.Exec(t, writers[2], `COMMIT`)
	r.Exec(insert)
	expect("{[3,4),[5,6)}", 1)
	expect("{[3,4),[5,6)}", []int64{}...)
	testdb.Exec(t, writers[1], `ROLLBACK`)
	r.scan()
	expect("{}", 5)
	r.expect("the rest", "{}", 7)
}
