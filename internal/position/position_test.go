package position

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/notifyd/notifyd/internal/lease"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/tail"
	"github.com/notifyd/notifyd/internal/testenv"
	"github.com/notifyd/notifyd/internal/testenv/testdb"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// log is a database whose table is a stream.
type log struct{ *testdb.DB }

func TestMain(m *testing.M) { testenv.Main(m) }

func newStream(tb testing.TB) *log {
	tb.Helper()
	l := &log{testdb.New(tb, testdb.Tables{Notify: outboxsql.NotifyOff})}
	l.Exec(`UPDATE outbox_mode SET mode = 'stream'`)
	return l
}

// TestBound: the ranges written with a position are bounded, and a head below all omitted ones
// loses nothing.
func TestBound(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(maxOpen-2, maxOpen+3).Draw(t, "ranges")
		var open tail.Ranges
		last := int64(0)
		for i := range n {
			from := last + 2 + int64(i%3)
			last = from + int64(i%5)
			open = append(open, tail.Range{From: from, To: last})
		}
		head := last + rapid.Int64Range(0, 10).Draw(t, "behind")
		h, o := (&Position{}).Bound(head, open)
		if len(o) != min(n, maxOpen) {
			t.Fatalf("%d ranges, of %d", len(o), n)
		}
		if n <= maxOpen && h != head {
			t.Fatalf("the head is %d, want %d", h, head)
		}
		for _, r := range open[len(o):] {
			if r.From <= h {
				t.Fatalf("%v is not read again: the head is %d", r, h)
			}
		}
		if n > maxOpen && h != open[maxOpen].From-1 {
			t.Fatalf("the head is %d, more than need be is read again", h)
		}
		if o[len(o)-1].To > h {
			t.Fatalf("%v is above the head %d", o[len(o)-1], h)
		}
	})
}

// owned returns the position of a destination as a new owner loads it.
func (l *log) owned(number int32) *Position {
	l.Helper()
	epoch := testdb.One[int64](l.DB, l.Conn, `UPDATE outbox_positions SET epoch = epoch + 1 WHERE number = $1 RETURNING epoch`, number)
	p, err := Load(l.Context(), session.Direct(l.Conn), lease.Lease{PositionID: number, Epoch: epoch})
	if err != nil {
		l.Fatal(err)
	}
	return &p
}

// TestSave: only the last owner writes, in one flight with other statements or alone, and also where others have written
// the row meanwhile.
func TestSave(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	l.Exec(`INSERT INTO outbox_positions (destination, head, open) VALUES ('a', 7, '{[2,4),[5,6)}')`)
	number := testdb.One[int32](l.DB, l.Conn, `SELECT number FROM outbox_positions`)
	old := l.owned(number)
	if old.Head != 7 || old.Open.String() != "{[2,4),[5,6)}" || old.Epoch != 1 {
		t.Fatalf("loaded: %+v", old)
	}
	save := func(p *Position, head int64, open tail.Ranges, delivered int64) bool {
		t.Helper()
		ok, err := p.Save(t.Context(), l.Conn, head, open, delivered)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if !save(old, 8, nil, 2) || !save(old, 9, tail.Ranges{{From: 3, To: 3}, {From: 8, To: 8}}, 2) {
		t.Error("the owner is fenced")
	}
	l.Exec(`UPDATE outbox_positions SET sealed = 1`)
	if !save(old, 9, tail.Ranges{{From: 3, To: 3}, {From: 8, To: 8}}, 1) {
		t.Error("the owner is fenced by a write of another column")
	}
	next := l.owned(number)
	if next.Head != 9 || next.Open.String() != "{[3,4),[8,9)}" || next.Epoch != 2 || next.Delivered != 5 {
		t.Errorf("loaded: %+v", next)
	}
	if save(old, 20, nil, 1) {
		t.Error("an old owner writes")
	}
	if again := l.owned(number); again.Epoch != 3 || again.Head != 9 {
		t.Errorf("loaded again: %+v", again)
	}
	if save(next, 20, nil, 1) {
		t.Error("an old epoch writes")
	}
	if _, err := Load(t.Context(), session.Direct(l.Conn), next.Lease); !errors.Is(err, ErrFenced) {
		t.Errorf("an old epoch loads: %v", err)
	}
}

// TestSaveUnderASnapshot: a save finds its row by its place, and reads none of the versions that an old snapshot keeps.
func TestSaveUnderASnapshot(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	l.Exec(`INSERT INTO outbox_positions (destination, head) VALUES ('a', 0)`)
	p := l.owned(testdb.One[int32](l.DB, l.Conn, `SELECT number FROM outbox_positions`))
	old := l.Dial()
	l.On(old, `BEGIN ISOLATION LEVEL REPEATABLE READ`)
	l.On(old, `SELECT FROM outbox_positions`)
	relay := l.Relay()
	for range 500 {
		if ok, err := p.Save(t.Context(), relay, 1, nil, 0); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	plan := strings.Join(testdb.List[string](l.DB, relay, `EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, SUMMARY OFF) `+sqlSave, pgx.QueryExecModeSimpleProtocol, p.PositionID, p.Epoch, 2, "{}", 0, p.row), "\n")
	if !strings.Contains(plan, "Tid Scan") {
		t.Error(plan)
	}
	hit := regexp.MustCompile(`Tid Scan[^\n]*\n(?:.*\n)*?\s*Buffers: shared hit=(\d+)`).FindStringSubmatch(plan)
	if hit == nil || len(hit[1]) > 1 {
		t.Errorf("it reads %v pages:\n%s", hit, plan)
	}
}
