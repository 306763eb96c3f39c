package position

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/lease"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/tail"
	"github.com/notifyd/notifyd/internal/testenv"
	"github.com/notifyd/notifyd/internal/testenv/testdb"
	"github.com/notifyd/notifyd/observe"
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

// TestSaveManyRanges: many ranges are all written, and stay as they are until the next write of all of them is due. A
// position with a copy writes them each time.
func TestSaveManyRanges(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	l.Exec(`INSERT INTO outbox_positions (destination, head) VALUES ('a', 0)`)
	number := testdb.One[int32](l.DB, l.Conn, `SELECT number FROM outbox_positions`)
	var open tail.Ranges
	for i := range int64(3 * observe.ManyRanges) {
		open.Add(tail.Range{From: 2*i + 1, To: 2*i + 1})
	}
	p := l.owned(number)
	save := func(head int64, behind bool) {
		t.Helper()
		ok, err := p.Save(t.Context(), l.Conn, head, open, 1)
		if !ok || err != nil || p.Behind() != behind {
			t.Fatal(ok, err, p.Behind())
		}
	}
	written := func(head, delivered int64) {
		t.Helper()
		text := testdb.One[string](l.DB, l.Conn, `SELECT head || ' ' || delivered || ' ' || (SELECT count(*) FROM unnest(open)) FROM outbox_positions`)
		if want := fmt.Sprint(head, delivered, len(open)); text != want {
			t.Errorf("written: %s, want %s", text, want)
		}
	}
	save(100_000, false)
	written(100_000, 1)
	p.wholeAt = time.Now().Add(time.Hour)
	save(100_001, true)
	written(100_000, 2)
	p.WriteWhole()
	save(100_002, false)
	written(100_002, 3)
	if pause := time.Until(p.wholeAt); pause <= 0 || pause > wholeAtMost {
		t.Errorf("the next write is due in %v", pause)
	}
	p.Exact = true
	save(100_003, false)
	written(100_003, 4)
	if again := l.owned(number); again.Head != 100_003 || !slices.Equal(again.Open, open) {
		t.Errorf("loaded: %d, %d ranges", again.Head, len(again.Open))
	}
	p.Exact = false
	if ok, err := p.Save(t.Context(), l.Conn, 100_004, open, 1); ok || err != nil {
		t.Errorf("a former owner writes: %v", err)
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
