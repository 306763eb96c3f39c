package tail

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/session"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestGapIsFilled: a late commit is read when it is visible, and is not waited for.
func TestGapIsFilled(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	w, other := l.Dial(), l.Dial()
	r := follow(l, 0, nil)
	for _, c := range []string{"BEGIN", insert, "SAVEPOINT s", insert, "ROLLBACK TO s", insert} {
		l.On(w, c)
	}
	l.On(other, insert)
	r.expect("behind an open one", "{[1,4)}", 4)
	r.scan()
	r.expect("it is open still", "{[1,4)}")
	if s := r.GapStats(); s.Ranges != 1 || s.IDs != 3 || !slices.Equal(s.PIDs, []int32{int32(w.PgConn().PID())}) {
		t.Errorf("%+v", s)
	}
	l.On(w, "COMMIT")
	r.expect("it is committed, but for a savepoint", "{[2,3)}", 1, 3)
	r.scan()
	r.expect("nobody is left", "{}")
}

// TestDeadGaps: rolled back ids are known to be dead after one scan and a read.
func TestDeadGaps(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	w := l.Dial()
	r := follow(l, 0, nil)
	for _, c := range []string{"BEGIN", insert, "ROLLBACK", insert, "SELECT nextval(pg_get_serial_sequence('outbox_events', 'id')) FROM generate_series(1, 5)", insert} {
		l.On(w, c)
	}
	r.expect("dead ones between", "{[1,2),[3,8)}", 2, 8)
	r.expect("nothing is known without a scan", "{[1,2),[3,8)}")
	r.scan()
	if r.Gaps().Len() != 2 {
		t.Error("a scan alone has ended gaps")
	}
	r.expect("after a scan", "{}")
}

// holding is a schedule in which an event is lost if the scan is at another lock than the
// sequence's: its id is drawn, another one is read, a scan is taken, and then it is inserted and
// committed.
func heldBy(t *testing.T, object string, prepare ...string) (lost bool) {
	t.Helper()
	l := newLog(t)
	w := l.Dial()
	r := follow(l, 0, nil)
	r.w.object = object
	l.On(w, "BEGIN")
	for _, c := range prepare {
		l.On(w, c)
	}
	id := testdb.One[int64](l, w, `SELECT nextval(pg_get_serial_sequence('outbox_events', 'id'))`)
	l.Exec(insert)
	r.read(Query{})
	r.scan()
	before, _ := r.read(Query{})
	l.On(w, `INSERT INTO outbox_events (id, event_type, payload) VALUES ($1, 'a', '1')`, id)
	l.On(w, "COMMIT")
	after, _ := r.read(Query{})
	return !slices.Contains(append(before, after...), id)
}

// TestWhichLock: the lock on the sequence shows the transactions that have drawn; that on the table
// does not.
func TestWhichLock(t *testing.T) {
	t.Parallel()
	undone := []string{"SAVEPOINT s", insert, "ROLLBACK TO s"}
	if heldBy(t, theSequence) || heldBy(t, theSequence, undone...) {
		t.Error("an event is lost")
	}
	if !heldBy(t, theTable) || !heldBy(t, theTable, undone...) {
		t.Error("the lock on the table would do: this test shows nothing")
	}
}

// TestScanIsBeforeSnapshot: if the rows are from a time before the scan, an event that is committed between them is lost. So a
// read has a transaction of its own.
func TestScanIsBeforeSnapshot(t *testing.T) {
	t.Parallel()
	for _, old := range []bool{false, true} {
		l := newLog(t)
		w := l.Dial()
		l.On(w, "BEGIN")
		l.On(w, insert)
		l.Exec(insert)
		r := follow(l, 0, nil)
		if old {
			l.On(r.on.Conn, "BEGIN ISOLATION LEVEL REPEATABLE READ")
		}
		r.read(Query{}) // takes the snapshot of that transaction
		l.On(w, "COMMIT")
		r.scan()
		ids, _ := r.read(Query{})
		more, _ := r.read(Query{})
		if lost := !slices.Contains(append(ids, more...), 1); lost != old || r.Gaps().Len() > 0 {
			t.Errorf("with an old snapshot %v: lost %v, left %v", old, lost, r.Gaps())
		}
	}
}

// TestOldScans: a scan that began before a gap was seen tells nothing about it.
func TestOldScans(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	r := follow(l, 0, nil)
	old := r.scanOnly() // nobody is there
	w := l.Dial()
	l.On(w, "BEGIN")
	l.On(w, insert)
	l.Exec(insert)
	r.expect("behind an open one", "{[1,2)}", 2)
	r.Apply(old)
	r.expect("after an old look", "{[1,2)}")
	l.On(w, "COMMIT")
	r.expect("committed", "{}", 1)
	// The same for a reader that continues from a stored position, whose head says nothing about
	// ids above it.
	r.Reader = NewReader(2, idset.Set{{From: 1, To: 1}, {From: 3, To: 9}}, r.w)
	r.Apply(old)
	r.expect("stored", "{}", 1)
}

// TestScannedBeforeFound: gaps that are found after a scan need no new one, if their ids were assigned before it.
func TestScannedBeforeFound(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	r := follow(l, 0, nil)
	open, other := l.Dial(), l.Dial()
	rolledBack := func(c *pgx.Conn) {
		l.On(c, "BEGIN")
		l.On(c, insert)
		l.On(c, "ROLLBACK")
		l.Exec(insert)
	}
	two := func(what, gaps string, want ...int64) {
		t.Helper()
		ids, _ := r.read(Query{Limit: 1})
		if !slices.Equal(ids, want) || r.Gaps().String() != gaps {
			t.Errorf("%s: read %v and left %v, want %v and %s", what, ids, r.Gaps(), want, gaps)
		}
	}
	const fill = `INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, 32)`
	for range 3 {
		rolledBack(other) // 2, 4 and 6 are there
	}
	l.Exec(fill) // a scan does not count the last ones
	r.scan()
	two("found after the scan", "{[1,2)}", 2)
	two("the first is dead", "{[3,4)}", 4)
	l.On(open, "BEGIN")
	l.On(open, insert) // 39
	rolledBack(other)  // 41 is there
	l.Exec(fill)
	r.scan()          // the writer of 39 is open
	rolledBack(other) // 75 is there
	two("the second is dead", "{[5,6)}", 6)
	r.read(Query{Limit: 32})
	two("found under an open writer", "{[39,41)}", 41)
	r.read(Query{Limit: 32})
	two("above the scan", "{[39,41),[74,75)}", 75)
	r.expect("still open", "{[39,41),[74,75)}")
	if g := r.gaps.groups; len(g) != 2 || len(g[0].writers) != 1 || len(g[1].writers) > 0 {
		t.Errorf("the writers of the gaps: %+v", g)
	}
	l.On(open, "COMMIT")
	r.scan()
	r.expect("committed", "{}", 39)
	if a := r.gaps.assigned; a[0].To != 75-32 || a[0].clearAt == 0 || a[1].gapGroup != nil {
		t.Errorf("known is %+v", a)
	}
	l.Exec(`SELECT setval(pg_get_serial_sequence('outbox_events', 'id'), 50)`)
	if r.scan(); r.gaps.assigned[0].To != 50-32 {
		t.Errorf("the sequence was set back, known is %+v", r.gaps.assigned)
	}
}

// between is a connection on which something happens before its second statement.
type between struct {
	session.Querier
	statements int
	happens    func()
}

func (b *between) next() {
	if b.statements++; b.statements == 2 {
		b.happens()
	}
}

func (b *between) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	b.next()
	return b.Querier.Query(ctx, sql, args...)
}

func (b *between) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	b.next()
	return b.Querier.QueryRow(ctx, sql, args...)
}

// TestDrawnDuringAScan: a scan knows the writer of each id that it counts as assigned.
func TestDrawnDuringAScan(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	r, w := follow(l, 0, nil), l.Dial()
	l.On(w, "BEGIN")
	scan, err := r.w.Scan(t.Context(), &between{Querier: r.on, happens: func() {
		l.On(w, `INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, 100)`)
	}}, "")
	if err != nil {
		t.Fatal(err)
	}
	if scan.assigned > 0 && len(scan.Writers) == 0 {
		t.Errorf("ids up to %d are assigned, and none of their writers is listed", scan.assigned)
	}
	r.Apply(scan)
	l.Exec(insert)
	r.read(Query{})
	l.On(w, "COMMIT")
	if ids, _ := r.read(Query{}); len(ids) != 100 || r.Gaps().Len() > 0 {
		t.Errorf("%d events were read after the commit, left %v", len(ids), r.Gaps())
	}
}

// TestValueAhead: a scan counts no id as assigned that the sequence assigns later, although nextval puts a value into the row
// that is ahead for a moment.
func TestValueAhead(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	const draw = `SELECT max(nextval(pg_get_serial_sequence('outbox_events', 'id'))) FROM generate_series(1, $1)`
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	for range 3 {
		c := l.Dial()
		all.Go(func() {
			for ctx.Err() == nil {
				if _, err := c.Exec(context.WithoutCancel(ctx), draw, 3000); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	c := l.Dial()
	for range 3000 {
		last := testdb.One[int64](t, c, sqlLast)
		if next := testdb.One[int64](t, c, draw, 1); next <= last {
			t.Errorf("%d was assigned after a scan that began with %d", next, last)
		}
	}
}

// TestPartitionedAfterAScan: what a scan of a plain table has found is right when the table has become partitioned, and a
// partition was detached before it was read.
func TestPartitionedAfterAScan(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	r := follow(l, 0, nil)
	for range 50 {
		l.Exec(insert)
	}
	r.read(Query{Limit: 1})
	r.scan()
	if err := outboxsql.Partition(t.Context(), l.Dial(), "public", outboxsql.PartitionOptions{}); err != nil {
		t.Fatal(err)
	}
	name := testdb.One[string](l, l.Conn, `SELECT tableoid::regclass::text FROM outbox_events WHERE id = 2`)
	for range 3 { // the last call moves the sequence
		l.Exec(`SELECT outbox_partitions_extend(now() + interval '1 day', 3)`)
	}
	l.Exec(insert)
	l.Exec(`ALTER TABLE outbox_events DETACH PARTITION ` + name)
	r.read(Query{}) // it does not reach far, because the last one was full
	for range 3 {
		r.read(Query{})
		if !r.Gaps().Contains(2) {
			t.Fatalf("unread events of a detached partition are dead, left are %v", r.Gaps())
		}
	}
}

// TestWritersThatOverlap: scans clear the ids of an earlier scan although each of them finds a writer.
func TestWritersThatOverlap(t *testing.T) {
	t.Parallel()
	var g gaps
	w := func(names ...string) (list []Writer) {
		for _, n := range names {
			list = append(list, Writer{n, 1})
		}
		return list
	}
	for i, writers := range [][]Writer{w("a", "b"), w("b", "c"), w("c", "d"), w("d", "e")} {
		n := uint64(i)
		g.apply(&WriterScan{began: 10*n + 1, ended: 10*n + 2, assigned: 100 * int64(n+1), Writers: writers})
	}
	// The third scan has cleared the ids of the first, and started a new set of writers. The fifth would do so again.
	if a := g.assigned; a[0].To != 100 || a[0].clearAt != 22 || a[1].To != 300 || len(a[1].writers) != 1 || a[1].writers[0].Transaction != "d" {
		t.Errorf("known is %+v", a)
	}
	g.add([]idset.Range{{From: 90, To: 95}, {From: 99, To: 310}}, &gapGroup{found: 50})
	if got := fmt.Sprint(idset.Set{g.all[0].Range, g.all[1].Range, g.all[2].Range, g.all[3].Range}); len(g.all) != 4 || len(g.groups) != 3 || got != "{[90,96),[99,101),[101,301),[301,311)}" {
		t.Errorf("the gaps are %v in %d groups", got, len(g.groups))
	}
	if !g.all[1].dead(51) || g.all[2].dead(51) || len(g.all[2].writers) != 1 || len(g.all[3].writers) > 0 {
		t.Errorf("the groups are %+v, %+v, %+v", g.groups[0], g.groups[1], g.groups[2])
	}
	if n := g.first(51); n != 2 {
		t.Errorf("a short read has %d gaps", n)
	}
}

// TestReadBeforeTheEndOfAScan: a read that began during a scan ends no gap.
func TestReadBeforeTheEndOfAScan(t *testing.T) {
	t.Parallel()
	var g gaps
	g.add([]idset.Range{{From: 1, To: 9}}, &gapGroup{found: 1})
	g.apply(&WriterScan{began: 2, ended: 4})
	if dead := g.read(nil, 100, 3, nil); dead != 0 || len(g.all) != 1 {
		t.Error("it has")
	}
	if dead := g.read([]int64{4}, 4, 5, nil); dead != 3 || len(g.all) != 1 || g.all[0].Range != (idset.Range{From: 5, To: 9}) || len(g.groups) != 1 {
		t.Errorf("%d dead, left %v", dead, g.all)
	}
	if dead := g.read(nil, 100, 6, nil); dead != 5 || len(g.all) != 0 || len(g.groups) != 0 {
		t.Errorf("%d dead, left %v", dead, g.all)
	}
}

// TestOneStatement: two statements for gaps and head would deliver the second event of
// an aggregate before the first; the reader's does not.
func TestOneStatement(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	w := l.Dial()
	r := follow(l, 0, nil)
	l.On(w, "BEGIN")
	l.On(w, insert)
	l.Exec(insert)
	r.expect("behind an open one", "{[1,2)}", 2)
	before := testdb.List[int64](l, r.on, `SELECT id FROM outbox_events WHERE id = 1`)
	l.On(w, "COMMIT")
	l.On(w, insert)
	after := testdb.List[int64](l, r.on, `SELECT id FROM outbox_events WHERE id > 2`)
	if got := slices.Concat(before, after); !slices.Equal(got, []int64{3}) {
		t.Errorf("two statements read %v: this test shows nothing", got)
	}
	r.expect("one statement", "{}", 1, 3)
}

// TestCache: a session holds no lock for ids that it has reserved in advance. So no scan with such a sequence proves
// anything. Once the sequence has CACHE 1 again, the session no longer has them.
func TestCache(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	l.Exec(`ALTER TABLE outbox_events ALTER COLUMN id SET CACHE 10`)
	w := l.Dial()
	l.On(w, insert) // 1, and 2 to 10 are its session's
	l.Exec(insert)  // 11
	r := follow(l, 0, nil)
	r.expect("a gap", "{[2,11)}", 1, 11)
	if _, err := r.w.Scan(t.Context(), r.on, ""); !errors.Is(err, outboxsql.ErrStream) {
		t.Error(err)
	}
	l.On(w, insert)
	r.expect("an id that was drawn in advance", "{[3,11)}", 2)
	l.Exec(`ALTER TABLE outbox_events ALTER COLUMN id SET CACHE 1`)
	l.On(w, insert)
	r.scan()
	if ids, _ := r.read(Query{}); len(ids) != 1 || ids[0] < 12 || r.Gaps().Contains(3) {
		t.Errorf("read %v, left %v", ids, r.Gaps())
	}
}

// TestPrepared: a prepared transaction is listed as a writer, before and after a restart of the server,
// which voids all knowledge of others.
func TestPrepared(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, map[string]string{"max_prepared_transactions": "10"})
	l := newLogAt(t, server.URL(""))
	w, open := l.Dial(), l.Dial()
	r := follow(l, 0, nil)
	for _, c := range []string{"BEGIN", insert} {
		l.On(w, c)
		l.On(open, c)
	}
	l.Exec(insert)
	r.expect("two open ones", "{[1,3)}", 3)
	r.scan()
	l.On(w, "PREPARE TRANSACTION 'one'")
	r.scan()
	r.expect("one is prepared", "{[1,3)}")
	if pids := r.GapStats().PIDs; len(pids) != 2 || !slices.Contains(pids, 0) {
		t.Error(pids)
	}
	if err := server.Restart(t.Context(), pgserver.Fast); err != nil {
		t.Fatal(err)
	}
	l.Conn, r.on = l.Dial(), session.Direct(l.Relay())
	r.scan() // the reader continues, although a shard would begin anew
	if pids := r.GapStats().PIDs; !slices.Equal(pids, []int32{0}) {
		t.Errorf("after the restart: %v", pids)
	}
	r.expect("after the restart", "{[1,3)}")
	l.Exec("COMMIT PREPARED 'one'")
	r.scan()
	if r.expect("committed", "{}", 1); r.Head() != 3 {
		t.Error(r.Head())
	}
}

// TestRemaining: the writers that are left.
func TestRemaining(t *testing.T) {
	t.Parallel()
	a, b, p, q := Writer{"3/1", 10}, Writer{"4/1", 11}, Writer{"-1/700", 0}, Writer{"-1/701", 0}
	for _, c := range []struct{ before, now, want []Writer }{
		{[]Writer{a, b}, []Writer{a, b}, []Writer{a, b}},
		{[]Writer{a, b}, []Writer{b}, []Writer{b}},
		{[]Writer{a}, []Writer{b}, nil},
		{[]Writer{a}, []Writer{p}, []Writer{p}},                      // a may be p now
		{[]Writer{a, b}, []Writer{p, a}, []Writer{p, a}},             // b may be
		{[]Writer{p}, []Writer{p, q}, []Writer{p}},                   // q came later
		{[]Writer{p}, []Writer{q}, nil},                              // and p is over
		{[]Writer{a}, []Writer{{"3/1", 0}, q}, []Writer{{"3/1", 0}}}, // prepared under its name
		{[]Writer{p, a}, []Writer{p, q}, []Writer{p, q}},             // each once
		{[]Writer{a}, []Writer{{"3/2", 10}}, nil},                    // the same session, later
	} {
		sorted := func(h []Writer) []Writer {
			h = slices.Clone(h)
			slices.SortFunc(h, byTransaction)
			return h
		}
		l := &WriterScan{Writers: sorted(c.now)}
		if got := l.remaining(sorted(c.before)); !slices.Equal(got, sorted(c.want)) {
			t.Errorf("of %v in %v are left %v", c.before, c.now, got)
		}
	}
}

// TestNextScan: gaps are scanned when that pays, and seldom when they stay.
func TestNextScan(t *testing.T) {
	t.Parallel()
	begin := time.Unix(1000, 0)
	after := begin.Add
	var g gaps
	if _, ok := g.next(time.Time{}, 1); ok {
		t.Error("a scan for nothing")
	}
	m := &gapGroup{found: 1, since: begin, read: 1}
	g.add([]idset.Range{{From: 1, To: 1}}, m)
	for _, c := range []struct {
		last  time.Time
		reads uint64
		want  time.Time
	}{
		{time.Time{}, 1, after(scanAfter)},                                // nothing was read since
		{time.Time{}, 2, begin},                                           // a second read has not filled it
		{after(time.Millisecond), 2, after(scanEvery + time.Millisecond)}, // the last look is just over
		{after(time.Second), 9, after(1250 * time.Millisecond)},
		{after(time.Hour), 9, after(time.Hour + scanAtLeast)},
	} {
		if at, ok := g.next(c.last, c.reads); !ok || !at.Equal(c.want) {
			t.Errorf("%+v: %v", c, at)
		}
	}
	g.apply(&WriterScan{began: 2, ended: 3})
	if _, ok := g.next(begin, 9); ok {
		t.Error("a scan where a read is what is missing")
	}
	r := NewReader(5, idset.Set{{From: 1, To: 2}}, NewWriterScanner())
	if at, ok := r.NextScan(); !ok || r.NeedsScan(at.Add(-1)) || !r.NeedsScan(at) {
		t.Error("NeedsScan and NextScan differ")
	}
}

// TestScansAreShared: one at a time, and no more of them than pay.
func TestScansAreShared(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	w, conn := NewWriterScanner(), l.Relay()
	first, err := w.Scan(t.Context(), conn, "one")
	if err != nil {
		t.Fatal(err)
	}
	if until := time.Until(w.next); until < scanEvery/2 && until > 0 {
		t.Errorf("the next look is due in %v", until)
	}
	w.next = time.Now().Add(time.Hour)
	if again, err := w.Scan(t.Context(), conn, "one"); err != nil || again != first {
		t.Errorf("another scan at once: %v", err)
	}
	if other, err := w.Scan(t.Context(), conn, "another"); err != nil || other == first {
		t.Errorf("the scan of another life of the server: %v", err)
	}
	w.next = time.Time{}
	second, err := w.Scan(t.Context(), conn, "one")
	if err != nil || second == first || second.began <= first.ended || second.ended <= second.began {
		t.Errorf("%+v and then %+v: %v", first, second, err)
	}
	w.running <- struct{}{} // another look begins
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Scan(ctx, conn, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("beside another scan: %v", err)
	}
	<-w.running
	l.Exec(`CREATE OR REPLACE VIEW outbox_last_id AS SELECT NULL::bigint AS id; ALTER TABLE outbox_events ALTER COLUMN id DROP IDENTITY`)
	w.next = time.Time{}
	if _, err := w.Scan(t.Context(), conn, "one"); !errors.Is(err, errNoSequence) {
		t.Errorf("without a sequence: %v", err)
	}
}

// TestAnotherSequence: the holders of a replaced sequence are not listed as writers.
func TestAnotherSequence(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	w := l.Dial()
	r := follow(l, 5, idset.Set{{From: 1, To: 4}})
	r.scan()
	l.Exec(`CREATE OR REPLACE VIEW outbox_last_id AS SELECT NULL::bigint AS id; ALTER TABLE outbox_events ALTER COLUMN id DROP IDENTITY`)
	l.Exec(`ALTER TABLE outbox_events ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (START WITH 6)`)
	l.On(w, "BEGIN")
	l.On(w, insert)
	r.scan()
	r.expect("scanned anew", "{[1,5)}")
	l.On(w, "ROLLBACK")
	r.scan()
	r.expect("nobody is left", "{}")
}
