package tail

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

// leftOut returns how many ids the next read leaves out: of gaps, and above the head.
func (t *follower) leftOut() (inGaps, above int64) {
	p := t.newFetch(Query{Limit: 1})
	inGaps = t.Gaps().IDs()
	for _, g := range p.gaps {
		inGaps -= g.To - g.From + 1
	}
	return inGaps, p.above - t.Head()
}

// expectLeftOut fails the test unless the next read leaves out so many ids of gaps.
func (t *follower) expectLeftOut(what string, want int64) {
	t.Helper()
	if got, _ := t.leftOut(); got != want {
		t.Errorf("%s: %d ids are left out, want %d", what, got, want)
	}
}

// readIn reads, and has the read take some time.
func (t *follower) readIn(took time.Duration) {
	t.Helper()
	p := t.newFetch(Query{Limit: 1000})
	err := p.read(t.Context(), t.on, &t.gaps, t.statement)
	p.took = took
	if _, err := t.finish(&p, err); err != nil {
		t.Fatal(err)
	}
}

// newPreparable returns a log on a server that allows prepared transactions.
func newPreparable(t *testing.T) *testdb.DB {
	t.Helper()
	return newLogAt(t, testenv.OwnPostgres(t, map[string]string{"max_prepared_transactions": "10"}).URL(""))
}

// TestWaitingGapsAreLeftOut: the gaps of a transaction that stays open are not read, and its events come with the first
// read that could see them, in the order of ids with later ones.
func TestWaitingGapsAreLeftOut(t *testing.T) {
	t.Parallel()
	l := newPreparable(t)
	for name, end := range map[string]struct {
		steps     []string
		committed bool
	}{
		"commit":            {[]string{"COMMIT"}, true},
		"rollback":          {[]string{"ROLLBACK"}, false},
		"commit prepared":   {[]string{"PREPARE TRANSACTION 'one'", "COMMIT PREPARED 'one'"}, true},
		"rollback prepared": {[]string{"PREPARE TRANSACTION 'one'", "ROLLBACK PREPARED 'one'"}, false},
	} {
		w := l.Dial()
		r := follow(l, testdb.One[int64](t, l.Conn, `SELECT coalesce(max(id), 0) FROM outbox_events`), nil)
		r.read(Query{})
		for _, c := range []string{"BEGIN", "SAVEPOINT a", insert, "SAVEPOINT b", insert, "RELEASE b"} {
			l.On(w, c)
		}
		l.Exec(insert)
		r.read(Query{})
		r.expectLeftOut(name+", without a scan", 0)
		r.scan()
		r.read(Query{})
		r.expectLeftOut(name+", found by one scan", 0)
		r.scan()
		first := r.Gaps()[0].From
		r.expectLeftOut(name+", after the read", 2)

		l.On(w, insert)
		l.Exec(insert)
		r.expect(name+", a later event", fmt.Sprintf("{[%d,%d),[%d,%d)}", first, first+2, first+3, first+4), first+4)
		r.scan()
		r.read(Query{})
		r.expectLeftOut(name+", the later gap as well", 3)
		for _, c := range end.steps[:len(end.steps)-1] {
			l.On(w, c)
			r.expectLeftOut(name+", "+c, 3)
			r.scan() // it may be any prepared transaction now
			r.read(Query{})
			r.expectLeftOut(name+", a read after "+c, 3)
		}

		l.On(w, end.steps[len(end.steps)-1])
		l.Exec(insert)
		want := []int64{first, first + 1, first + 3, first + 5}
		if !end.committed {
			want = want[3:]
		}
		if ids, _ := r.read(Query{}); !slices.Equal(ids, want) {
			t.Errorf("%s: read %v, want %v", name, ids, want)
		}
		r.scan()
		r.expect(name+", in the end", "{}")
	}
}

// TestFirstGapWaits: a read of the first gap alone reads nothing while that gap waits, and ends no clear gap behind it.
func TestFirstGapWaits(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	w, other := l.Dial(), l.Dial()
	r := follow(l, 0, nil)
	l.On(w, "BEGIN")
	l.On(w, insert)
	l.Exec(insert)
	for _, c := range []string{"BEGIN", insert, "ROLLBACK"} {
		l.On(other, c)
	}
	l.Exec(insert)
	r.read(Query{})
	r.scan()
	r.expect("two gaps", "{[1,2),[3,4)}")
	r.scan()
	first := Query{Limit: 10, Reach: ReachFirstGap}
	if p := r.newFetch(first); len(p.gaps) > 0 || p.upto > 0 {
		t.Errorf("%d gaps are read, and ids up to %d", len(p.gaps), p.upto)
	}
	if ids, _ := r.read(first); len(ids) > 0 || r.Gaps().String() != "{[1,2),[3,4)}" {
		t.Errorf("read %v, left %v", ids, r.Gaps())
	}

	l.On(w, "COMMIT")
	if ids, _ := r.read(first); !slices.Equal(ids, []int64{1}) || r.Gaps().String() != "{[3,4)}" {
		t.Errorf("after the commit: read %v, left %v", ids, r.Gaps())
	}
}

// TestCommittedBeforeTheScan: a transaction that has ended before the scan is not listed. Its events are read although
// the other gaps of their group wait for another transaction.
func TestCommittedBeforeTheScan(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	a, b, c := l.Dial(), l.Dial(), l.Dial()
	r := follow(l, 0, nil)
	for _, w := range []*pgx.Conn{a, b, c} {
		l.On(w, "BEGIN")
		l.On(w, insert)
	}
	l.Exec(insert)
	r.expect("behind open ones", "{[1,4)}", 4)
	r.scanOnly()
	l.On(a, "COMMIT")
	r.scan()
	r.expectLeftOut("before a read", 0)
	r.expect("the first is committed", "{[2,4)}", 1)
	r.expectLeftOut("two are open", 2)

	l.On(b, "COMMIT")
	r.expect("the second is committed", "{[3,4)}", 2)
	r.scan()
	r.expectLeftOut("the list has changed", 0)
	r.expect("one is open", "{[3,4)}")
	r.expectLeftOut("one is open", 1)
	l.On(c, "COMMIT")
	r.expect("all are committed", "{}", 3)
}

// TestWriterWithoutNumber: a transaction that has drawn an id and written nothing may have no number. Its gap is read, and
// so are those that the same read has found.
func TestWriterWithoutNumber(t *testing.T) {
	t.Parallel()
	l, w, id := newUnnumbered(t)
	r := follow(l, 0, nil)
	l.Exec(insert)
	r.read(Query{})
	r.scanOnly()
	r.scan()
	r.read(Query{})
	r.expectLeftOut("without a number", 0)
	l.On(w, `INSERT INTO outbox_events (id, event_type, payload) VALUES ($1, 'a', '1')`, id)
	r.scan()
	r.read(Query{})
	r.expectLeftOut("with a number", 2)
	l.On(w, "COMMIT")
	r.expect("committed", "{[2,3)}", id)
}

// newUnnumbered returns a log with an open transaction that has inserted the second event, and one that has drawn the third id
// and has no number. A session gets a number if it draws the first id after a checkpoint, which any test may cause.
func newUnnumbered(t *testing.T) (l *testdb.DB, w *pgx.Conn, id int64) {
	t.Helper()
	const attempts = 100
	for range attempts {
		l = newLog(t)
		w = l.Dial()
		numbered := l.Dial()
		l.Exec(insert)
		l.On(numbered, "BEGIN")
		l.On(numbered, insert)
		l.On(w, "BEGIN")
		id = testdb.One[int64](t, w, `SELECT nextval(pg_get_serial_sequence('outbox_events', 'id'))`)
		if testdb.One[bool](t, w, `SELECT pg_current_xact_id_if_assigned() IS NULL`) {
			return l, w, id
		}
	}
	t.Fatal("each writer has a number: this test shows nothing")
	return nil, nil, 0
}

// TestNumbers: a scan finds the number of each writer, also of one with subtransactions and of a prepared one.
func TestNumbers(t *testing.T) {
	t.Parallel()
	l := newPreparable(t)
	w, p := l.Dial(), l.Dial()
	for _, c := range []*pgx.Conn{w, p} {
		for _, statement := range []string{"BEGIN", insert, "SAVEPOINT a", insert, "SAVEPOINT b", insert} {
			l.On(c, statement)
		}
	}
	want := []int64{
		testdb.One[int64](t, w, `SELECT pg_current_xact_id()::text::bigint`),
		testdb.One[int64](t, p, `SELECT pg_current_xact_id()::text::bigint`),
	}
	l.On(p, "PREPARE TRANSACTION 'p'")
	r := follow(l, 0, nil)
	r.scanOnly()
	scan := r.scanOnly()
	got := scan.numbers(scan.Writers)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the numbers are %v, want %v", got, want)
	}
}

// TestOldestNumber: the oldest transaction id is found from 32 bits of it and the next one, also where these 32 bits have
// started over in between.
func TestOldestNumber(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	const turn = int64(1) << 32
	for _, c := range []struct {
		next int64
		want int64
		xids []int64
	}{
		{1000, 998, []int64{999, 998}},
		{1000, 1003, []int64{1003, 1004}}, // the next one is that of the last snapshot
		{turn + 5, turn - 2, []int64{turn + 3, turn - 2, turn + 4}},
		{turn - 2, turn - 1, []int64{turn + 3, turn - 1}},
		{3*turn + 10, 3*turn + 7, []int64{3*turn + 7}},
		{3*turn + 10, 2*turn + turn/2 + 11, []int64{3*turn + 9, 2*turn + turn/2 + 11}},
	} {
		bits := make([]int64, len(c.xids))
		for i, x := range c.xids {
			bits[i] = x % turn
		}
		if got := testdb.One[int64](t, l.Conn, `SELECT `+sqlOldest+` FROM unnest($1::bigint[]) AS xid, (SELECT $2::bigint AS n) AS next`, bits, c.next); got != c.want {
			t.Errorf("%v before %d: the oldest is %d, want %d", c.xids, c.next, got, c.want)
		}
	}
}

// waitAbove has scans find the ids above the head that wait for an open transaction.
func (t *follower) waitAbove() {
	t.Helper()
	t.scanOnly()
	t.gaps.findAbove = true // after a slow read
	t.scan()
}

// TestUncommittedAboveHead: the events of an open transaction above the head are not read again and again.
func TestUncommittedAboveHead(t *testing.T) {
	t.Parallel()
	for _, beyond := range []bool{false, true} {
		t.Run(fmt.Sprint(beyond), func(t *testing.T) {
			t.Parallel()
			l := newLog(t)
			w := l.Dial()
			r := follow(l, 0, nil)
			l.Exec(insert)
			r.read(Query{})
			l.On(w, "BEGIN")
			l.On(w, insert+", ('a', 'order', '1', '{}')")
			l.On(w, `INSERT INTO outbox_events (event_type, payload) SELECT 'a', '{}' FROM generate_series(4, 100)`)
			r.read(Query{})
			r.waitAbove()
			if _, above := r.leftOut(); above != 0 {
				t.Errorf("%d ids are left out before a read", above)
			}
			r.read(Query{})
			if _, above := r.leftOut(); above < 60 {
				t.Errorf("%d ids are left out", above)
			}
			if beyond {
				l.Exec(insert)
				r.expect("another event", "{[2,101)}", 101)
			}
			r.expect("nothing new", map[bool]string{false: "{}", true: "{[2,101)}"}[beyond])
			l.On(w, "COMMIT")
			if ids, _ := r.read(Query{}); len(ids) != 99 || ids[0] != 2 || ids[98] != 100 {
				t.Errorf("%d events after the commit: %v", len(ids), ids)
			}
			if p := r.newFetch(Query{Limit: 1}); p.above != r.Head() {
				t.Errorf("reads still begin after %d", p.above)
			}
		})
	}
}

// TestPartOfAboveHead: a read that ends before the ids that wait, at its limit or its bound, allows no read to leave them
// out.
func TestPartOfAboveHead(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	w := l.Dial()
	r := follow(l, 0, nil)
	l.Exec(insert)
	l.Exec(insert)
	l.Exec(`SELECT nextval(pg_get_serial_sequence('outbox_events', 'id')) FROM generate_series(3, 40)`)
	l.Exec(insert)
	l.On(w, "BEGIN")
	l.On(w, `INSERT INTO outbox_events (event_type, payload) SELECT 'a', '{}' FROM generate_series(1, 100)`)
	r.waitAbove()
	for _, want := range [][]int64{{1}, {2}, {}, {41}} { // the third reaches as far as necessary after a full read
		if ids, _ := r.read(Query{Limit: 1}); !slices.Equal(ids, want) {
			t.Errorf("read %v, want %v", ids, want)
		}
	}
}

// TestSetBackAboveHead: the sequence is set back to an id that reads leave out. The next scan notices it.
func TestSetBackAboveHead(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	w := l.Dial()
	r := follow(l, 0, nil)
	l.Exec(insert)
	r.read(Query{})
	l.On(w, "BEGIN")
	l.On(w, insert)
	l.On(w, `SELECT nextval(pg_get_serial_sequence('outbox_events', 'id')) FROM generate_series(3, 100)`)
	r.waitAbove()
	r.read(Query{})
	if _, above := r.leftOut(); above == 0 {
		t.Fatal("nothing is left out")
	}
	l.Exec(`SELECT setval(pg_get_serial_sequence('outbox_events', 'id'), 49)`)
	l.Exec(insert)
	r.scan()
	r.expect("set back", "{[2,50)}", 50)
}

// TestEndedWriter: once a read has found that a transaction has ended, the reads until the next scan leave nothing out. Each
// of them would be repeated.
func TestEndedWriter(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	short, long := l.Dial(), l.Dial()
	r := follow(l, 0, nil)
	for _, w := range []*pgx.Conn{short, long} {
		l.On(w, "BEGIN")
		l.On(w, insert)
	}
	l.Exec(insert)
	r.read(Query{})
	for _, w := range []*pgx.Conn{short, long} {
		l.On(w, `INSERT INTO outbox_events (event_type, payload) SELECT 'a', '{}' FROM generate_series(1, 50)`)
	}
	r.waitAbove()
	r.read(Query{})
	if inGaps, above := r.leftOut(); inGaps != 2 || above < 60 {
		t.Fatalf("%d ids in gaps and %d above are left out", inGaps, above)
	}

	l.On(short, "ROLLBACK")
	r.expect("one has ended", "{[1,3)}")
	if inGaps, above := r.leftOut(); inGaps != 0 || above != 0 {
		t.Errorf("%d ids in gaps and %d above are left out although the read would be repeated", inGaps, above)
	}
	r.scan()
	r.read(Query{})
	r.expectLeftOut("after the next scan", 2)
}

// TestMoreUncommittedAboveHead: the head has passed the ids that wait for a transaction, and another transaction writes
// many events above them. A scan follows, after which reads leave these out, too.
func TestMoreUncommittedAboveHead(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	a, b := l.Dial(), l.Dial()
	r := follow(l, 0, nil)
	many := `INSERT INTO outbox_events (event_type, payload) SELECT 'a', '{}' FROM generate_series(1, 100)`
	l.On(a, "BEGIN")
	l.On(a, many)
	r.read(Query{})
	r.waitAbove()
	r.read(Query{})
	if _, above := r.leftOut(); above == 0 {
		t.Fatal("nothing is left out")
	}
	l.Exec(insert)
	r.read(Query{})

	l.On(b, "BEGIN")
	l.On(b, many)
	if r.readIn(time.Hour); !r.gaps.findAbove {
		t.Error("no scan finds the events above the head")
	}
}

// TestSlowNetwork: where each statement takes long, a slow read is no reason for a scan.
func TestSlowNetwork(t *testing.T) {
	t.Parallel()
	r := follow(newLog(t), 0, nil)
	if r.readIn(time.Second); !r.NeedsScan(time.Now()) {
		t.Fatal("a slow read is no reason for a scan")
	}
	scan := r.scanOnly()
	scan.took = time.Second
	r.Apply(scan)
	if r.readIn(time.Second); r.gaps.findAbove {
		t.Error("each read is a reason for a scan")
	}
}

// TestUnreadableWhileOthersWait: events that cannot be read come one by one, in gaps and above the head, and also if the read
// is repeated.
func TestUnreadableWhileOthersWait(t *testing.T) {
	t.Parallel()
	const bad = `INSERT INTO outbox_events (event_type, payload) VALUES ('a', '"→"')`
	for _, q := range []Query{{}, {Skip: []string{"b"}}, {Shard: Shard{Of: 1}}} {
		l := newLog(t)
		short, long := l.Dial(), l.Dial()
		r := follow(l, 0, nil)
		if _, err := r.on.Exec(t.Context(), `SET client_encoding = 'LATIN1'`); err != nil {
			t.Fatal(err)
		}
		l.On(short, "BEGIN")
		l.On(short, bad)
		l.On(short, insert)
		l.On(long, "BEGIN")
		l.On(long, insert)
		l.Exec(insert)
		r.read(q)
		r.scanOnly()
		r.scan()
		r.read(q)
		r.expectLeftOut("both wait", 3)

		l.On(short, "COMMIT")
		l.Exec(bad)
		l.Exec(insert)
		var ids, refused []int64
		for full := true; full; {
			some, b := r.read(q)
			ids, full = append(ids, some...), b.Full
			refused = slices.AppendSeq(refused, maps.Keys(b.Refused))
		}
		if !slices.Equal(ids, []int64{1, 2, 5, 6}) || !slices.Equal(refused, []int64{1, 5}) {
			t.Errorf("%+v: read %v, and refused %v", q, ids, refused)
		}
	}
}

// TestInsertedByHand: a person inserts an event with an id in a gap that waits for another transaction. A later read
// of all gaps finds it.
func TestInsertedByHand(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	w := l.Dial()
	r := follow(l, 0, nil)
	for _, c := range []string{"BEGIN", insert, "SAVEPOINT s", insert, "ROLLBACK TO s"} {
		l.On(w, c)
	}
	l.Exec(insert)
	r.read(Query{})
	r.scanOnly()
	r.scan()
	r.read(Query{})
	r.expectLeftOut("both wait", 2)
	l.Exec(`INSERT INTO outbox_events (id, event_type, payload) VALUES (2, 'a', '1')`)
	r.searchAt = time.Now()
	r.expect("all gaps are read", "{[1,2)}", 2)
	r.expectLeftOut("the other waits", 1)
}

// TestWaitingGapsAreOneGroup: while a transaction stays open, the gaps of ids that were rolled back since become one group, and
// all of them are left out. None delays the events of that transaction, or its own end.
func TestWaitingGapsAreOneGroup(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	w, other := l.Dial(), l.Dial()
	r := follow(l, 0, nil)
	l.On(w, "BEGIN")
	l.On(w, insert)
	const rounds = 30
	for n := range rounds {
		for _, c := range []string{"BEGIN", insert, "ROLLBACK"} {
			l.On(other, c)
		}
		l.Exec(insert)
		r.read(Query{})
		r.scan()
		r.read(Query{})
		// Those of this round, and of the one before, whose read followed the scan.
		if groups := len(r.gaps.groups); groups > 3 {
			t.Fatalf("%d groups after %d rounds", groups, n+1)
		}
	}
	r.scan()
	r.expectLeftOut("after a scan", 1+rounds)
	if groups := len(r.gaps.groups); groups != 1 {
		t.Errorf("%d groups", groups)
	}

	l.On(w, "COMMIT")
	l.Exec(insert)
	if ids, _ := r.read(Query{}); !slices.Equal(ids, []int64{1, 2 + 2*rounds}) {
		t.Errorf("read %v", ids)
	}
	r.scan()
	r.expect("in the end", "{}")
}
