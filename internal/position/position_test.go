package position

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/lease"
	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/session"
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
	save := func(p *Position, head int64, open idset.Set, delivered int64) bool {
		t.Helper()
		ok, err := p.Save(t.Context(), l.Conn, idset.Watermark{Head: head, Open: open}, delivered)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if !save(old, 8, nil, 2) || !save(old, 9, idset.Set{{From: 3, To: 3}, {From: 8, To: 8}}, 2) {
		t.Error("the owner is fenced")
	}
	l.Exec(`UPDATE outbox_positions SET sealed = 1`)
	if !save(old, 9, idset.Set{{From: 3, To: 3}, {From: 8, To: 8}}, 1) {
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
	var open idset.Set
	for i := range int64(3 * observe.ManyRanges) {
		open.Add(idset.Range{From: 2*i + 1, To: 2*i + 1})
	}
	p := l.owned(number)
	save := func(head int64, behind bool) {
		t.Helper()
		ok, err := p.Save(t.Context(), l.Conn, idset.Watermark{Head: head, Open: open}, 1)
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
	if ok, err := p.Save(t.Context(), l.Conn, idset.Watermark{Head: 100_004, Open: open}, 1); ok || err != nil {
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
		if ok, err := p.Save(t.Context(), relay, idset.Watermark{Head: 1}, 0); !ok || err != nil {
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

// TestNewFilesWhileEventsArrive: the sequence and the table get new files, and the position has passed events since its
// anchor. The ids are the same if the table has kept the events from before, and those that it had passed by then.
func TestNewFilesWhileEventsArrive(t *testing.T) {
	t.Parallel()
	const events = `INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, %d)`
	some, fewer := fmt.Sprintf(events, 20), fmt.Sprintf(events, 5)
	for name, c := range map[string]struct {
		anchor  int64
		changes []string
		again   bool
	}{
		"rewritten":              {20, []string{fewer, `VACUUM FULL outbox_events`, `ALTER SEQUENCE outbox_events_id_seq NO CYCLE`}, false},
		"unlogged and back":      {20, []string{fewer, `ALTER TABLE outbox_events SET UNLOGGED`, `ALTER TABLE outbox_events SET LOGGED`}, false},
		"a late event":           {20, []string{`INSERT INTO outbox_events (id, event_type, payload) VALUES (7, 'a', '1')`, fewer, `VACUUM FULL outbox_events`, `ALTER SEQUENCE outbox_events_id_seq NO CYCLE`}, false},
		"restarted":              {20, []string{fewer, `TRUNCATE outbox_events RESTART IDENTITY`, some, fewer}, true},
		"restarted and ahead":    {20, []string{fewer, `TRUNCATE outbox_events RESTART IDENTITY`, some, some}, true},
		"restarted at the end":   {20, []string{fewer, `TRUNCATE outbox_events`, `ALTER SEQUENCE outbox_events_id_seq RESTART WITH 22`, some}, true},
		"restarted in between":   {20, []string{fewer, `DELETE FROM outbox_events WHERE id >= 15`, `VACUUM FULL outbox_events`, `ALTER SEQUENCE outbox_events_id_seq RESTART WITH 15`, some}, true},
		"restarted, a new table": {0, []string{fewer, some, `TRUNCATE outbox_events RESTART IDENTITY`, some, fewer}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newStream(t)
			l.Exec(`INSERT INTO outbox_positions (destination, head, sequence) VALUES ('a', 0, ` + pgschema.Sequence + `)`)
			p := l.owned(testdb.One[int32](l.DB, l.Conn, `SELECT number FROM outbox_positions`))
			check := func(read idset.Watermark) error {
				return p.CheckIDs(t.Context(), session.Direct(l.Conn), slog.New(slog.DiscardHandler), read)
			}
			open := idset.Set{}
			if c.anchor > 0 {
				l.Exec(some)
				l.Exec(`DELETE FROM outbox_events WHERE id = 7`) // not written yet
				open = idset.Set{{From: 7, To: 7}}
			}
			if err := check(idset.Watermark{Head: c.anchor, Open: open}); err != nil {
				t.Fatal(err)
			}
			for _, change := range c.changes {
				l.Exec(change)
			}
			if err := check(idset.Watermark{Head: 25}); errors.Is(err, ErrIDs) != c.again || err != nil && !c.again {
				t.Error(err)
			}
		})
	}
}
