package tail

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/session"
)

// TestEachReadFindsAll interleaves the statements of transactions with scans and reads, one at a time. Each read returns
// exactly the events that are visible and new, in the order of ids, whatever it leaves out.
func TestEachReadFindsAll(t *testing.T) {
	t.Parallel()
	l := newPreparable(t)
	leaving, repeated := 0, 0
	for round := range 3 {
		seed := rand.Uint64()
		t.Logf("round %d, seed %d", round, seed)
		s := newWaitingRun(t, l, seed)
		s.run(500)
		leaving, repeated = leaving+s.leaving, repeated+s.repeated
	}
	t.Logf("%d reads left ids out, %d of these while a transaction had ended", leaving, repeated)
	if leaving == 0 || repeated == 0 {
		t.Error("too little has happened")
	}
}

// waitingRun is one run of TestEachReadFindsAll.
type waitingRun struct {
	*testdb.DB
	rng      *rand.Rand
	base     int64 // the highest id before the run
	writers  []*stepWriter
	prepared []string
	readers  []*checkedReader // the second one also follows the first
	scanner  *WriterScanner
	on       *session.Conn // of scans and reads
	old      *WriterScan   // a scan that only some readers have applied
	leaving  int           // reads that left ids out
	repeated int           // reads that left ids out for a transaction that had ended
}

// stepWriter is a session that makes one statement at a time.
type stepWriter struct {
	conn  *pgx.Conn
	open  bool
	saved int     // savepoints
	drawn []int64 // ids that are not inserted yet
}

// checkedReader is a reader with the ids that it should have left.
type checkedReader struct {
	*Reader
	query Query
	done  map[int64]bool
}

func newWaitingRun(t *testing.T, l *testdb.DB, seed uint64) *waitingRun {
	t.Helper()
	s := &waitingRun{
		DB: l, rng: rand.New(rand.NewPCG(seed, 0)), scanner: NewWriterScanner(), on: session.Direct(l.Relay()),
		base: testdb.One[int64](t, l.Conn, `SELECT coalesce((SELECT id FROM outbox_last_id), 0)`),
	}
	for range 5 {
		s.writers = append(s.writers, &stepWriter{conn: l.Dial()})
	}
	for _, q := range []Query{{}, {}, {Skip: []string{"b"}}, {Shard: Shard{Of: 2}}, {Shard: Shard{Number: 1, Of: 2}, Skip: []string{"b"}}} {
		s.readers = append(s.readers, &checkedReader{NewReader(s.base, nil, s.scanner), q, make(map[int64]bool)})
	}
	return s
}

func (s *waitingRun) run(steps int) {
	s.Helper()
	for range steps {
		switch s.rng.IntN(10) {
		case 0, 1, 2, 3:
			s.write()
		case 4, 5:
			s.scan()
		case 6:
			s.follow()
		default:
			s.read(s.readers[s.rng.IntN(len(s.readers))])
		}
	}
	for _, w := range s.writers {
		if w.open {
			s.end(w)
		}
	}
	for _, name := range s.prepared {
		s.Exec("COMMIT PREPARED '" + name + "'")
	}
	for _, r := range s.readers {
		for range 2 {
			r.Apply(s.find(nil))
			r.query.Reach = ReachAll
			s.check(r, 10_000, 0)
		}
		if len(r.Gaps()) > 0 {
			s.Errorf("%+v: gaps are left where nobody writes: %v", r.query, r.Gaps())
		}
	}
}

// write makes the next statement of a transaction.
func (s *waitingRun) write() {
	s.Helper()
	w := s.writers[s.rng.IntN(len(s.writers))]
	typ, aggregate := string("ab"[s.rng.IntN(2)]), s.rng.IntN(8)
	insertSome := fmt.Sprintf(`INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) SELECT '%s', 'order', '%d', '{}' FROM generate_series(1, %d)`,
		typ, aggregate, 1+s.rng.IntN(4))
	if !w.open {
		if s.rng.IntN(3) == 0 {
			s.On(w.conn, insertSome)
			return
		}
		if n := len(s.prepared); n > 0 && s.rng.IntN(3) == 0 {
			i := s.rng.IntN(n)
			s.On(w.conn, []string{"COMMIT", "ROLLBACK"}[s.rng.IntN(2)]+" PREPARED '"+s.prepared[i]+"'")
			s.prepared = slices.Delete(s.prepared, i, i+1)
			return
		}
		s.On(w.conn, "BEGIN")
		w.open, w.saved, w.drawn = true, 0, nil
		return
	}

	switch s.rng.IntN(12) {
	case 0, 1:
		s.On(w.conn, "SAVEPOINT s")
		w.saved++
	case 2:
		if w.saved > 0 {
			s.On(w.conn, []string{"ROLLBACK TO s", "RELEASE s"}[s.rng.IntN(2)])
			w.saved, w.drawn = 0, nil // fewer savepoints may be left
		}
	case 3:
		n := []int{1, 1, 100}[s.rng.IntN(3)] // a read that is not full may end before the next row
		w.drawn = append(w.drawn, testdb.One[int64](s, w.conn, `SELECT max(nextval(pg_get_serial_sequence('outbox_events', 'id'))) FROM generate_series(1, $1::int)`, n))
	case 4:
		if n := len(w.drawn); n > 0 {
			s.On(w.conn, `INSERT INTO outbox_events (id, event_type, payload) VALUES ($1, $2, '{}')`, w.drawn[n-1], typ)
			w.drawn = w.drawn[:n-1]
		}
	case 5:
		if len(s.prepared) < 5 {
			name := fmt.Sprintf("%d/%d", s.base, s.rng.Uint64())
			s.On(w.conn, "PREPARE TRANSACTION '"+name+"'")
			s.prepared, w.open = append(s.prepared, name), false
		}
	case 6:
		s.end(w)
	default:
		s.On(w.conn, insertSome)
	}
}

func (s *waitingRun) end(w *stepWriter) {
	s.Helper()
	s.On(w.conn, []string{"COMMIT", "COMMIT", "ROLLBACK"}[s.rng.IntN(3)])
	w.open = false
}

// interrupted runs a function between the two statements of a scan.
type interrupted struct {
	*session.Conn
	between func()
}

func (c interrupted) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if c.between != nil {
		c.between()
	}
	return c.Conn.Query(ctx, sql, args...)
}

// find scans.
func (s *waitingRun) find(between func()) *WriterScan {
	s.Helper()
	s.scanner.next = time.Time{}
	l, err := s.scanner.Scan(s.Context(), interrupted{s.on, between}, "")
	if err != nil {
		s.Fatal(err)
	}
	return l
}

// scan scans, and gives the scan, or an earlier one, to some of the readers.
func (s *waitingRun) scan() {
	s.Helper()
	now := s.find(func() {
		for range s.rng.IntN(3) {
			s.write()
		}
	})
	for _, r := range s.readers {
		r.gaps.findAbove = r.gaps.findAbove || s.rng.IntN(2) == 0 // as after a slow read
		switch s.rng.IntN(4) {
		case 0:
		case 1:
			if s.old != nil {
				r.Apply(s.old)
			}
		default:
			r.Apply(now)
		}
	}
	s.old = now
}

// visible returns the ids that the next read must find, with those that it returns.
func (s *waitingRun) visible(r *checkedReader) (ids []int64) {
	s.Helper()
	all := testdb.List[int64](s.DB, s.Conn, `SELECT id FROM outbox_events WHERE id > $1 ORDER BY id`, s.base)
	return slices.DeleteFunc(all, func(id int64) bool { return r.done[id] })
}

// wanted returns those of the ids that a reader returns.
func (s *waitingRun) wanted(r *checkedReader, ids []int64) []int64 {
	s.Helper()
	return testdb.List[int64](s.DB, s.Conn, `SELECT id FROM outbox_events WHERE id = ANY($1) AND event_type <> ALL($2)
		AND `+pgschema.Hash("")+` % $3 = $4 ORDER BY id`, ids, append([]string{}, r.query.Skip...), max(1, r.query.Shard.Of), r.query.Shard.Number)
}

// follow has the second reader follow the first.
func (s *waitingRun) follow() {
	first, second := s.readers[0], s.readers[1]
	if !second.Follow(Seen{From: s.base, Head: first.Head(), Gaps: first.Gaps()}) {
		return
	}
	left := second.Gaps()
	for id := range first.done {
		if !left.Contains(id) {
			second.done[id] = true
		}
	}
}

// read reads once, at once or with a begun read that is taken after further statements.
func (s *waitingRun) read(r *checkedReader) {
	s.Helper()
	limit := 10_000
	if s.rng.IntN(2) == 0 {
		limit = 1 + s.rng.IntN(6)
	}
	r.query.Reach = []Reach{ReachAll, ReachAll, ReachAll, ReachGaps, ReachFirstGap}[s.rng.IntN(5)]
	s.check(r, limit, s.rng.IntN(2)*s.rng.IntN(3))
}

// check reads, and compares the result with the ids that were visible and new. It is taken after some more statements.
func (s *waitingRun) check(r *checkedReader, limit, statements int) {
	s.Helper()
	visible := s.visible(r)
	q := r.query
	q.Limit, q.Rows = limit, limit*(1+s.rng.IntN(3))
	if _, xids := r.gaps.toRead(); len(xids) > 0 && q.Reach != ReachFirstGap {
		s.leaving++
		if testdb.One[bool](s, s.Conn, `SELECT EXISTS (SELECT FROM unnest($1::bigint[]) AS x WHERE pg_visible_in_snapshot(x::text::xid8, pg_current_snapshot()))`, xids) {
			s.repeated++
		}
	}
	before := r.Head()
	r.Begin(s.Context(), s.on, q)
	r.Wait()
	for range statements {
		s.write()
	}
	b, err := r.Take()
	if err != nil {
		s.Fatal(err)
	}

	gaps, reached := r.Gaps(), r.Head()
	var left []int64 // visible ids that the reader will still read
	for _, id := range visible {
		if id > reached || gaps.Contains(id) {
			left = append(left, id)
			continue
		}
		r.done[id] = true
	}
	found := visible[:len(visible)-len(left)]
	if len(left) > 0 && q.Reach != ReachFirstGap && left[0] < slices.Max(append(found, 0)) {
		s.Fatalf("%+v: %d was left out, and %v were read", q, left[0], found)
	}
	if !b.Full && len(left) > 0 && (q.Reach == ReachAll || q.Reach == ReachGaps && left[0] <= before) {
		s.Fatalf("%+v: %v are visible and were not read", q, left)
	}
	var got []int64
	for i := range b.Events {
		got = append(got, b.Events[i].ID)
	}
	if want := s.wanted(r, found); !slices.Equal(got, want) && len(got)+len(want) > 0 {
		s.Fatalf("%+v: read %v, want %v", q, got, want)
	}
}
