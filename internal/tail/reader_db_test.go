package tail

import (
	"slices"
	"testing"
	"time"

	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/session"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// newLog returns a database with an outbox_events that is read.
func newLog(tb testing.TB) *testdb.DB {
	tb.Helper()
	return stream(testdb.New(tb, tables()))
}

func newLogAt(tb testing.TB, url string) *testdb.DB {
	tb.Helper()
	return stream(testdb.At(tb, url, tables()))
}

// tables are without a trigger, which keeps transactions from being prepared.
func tables() testdb.Tables { return testdb.Tables{Notify: outboxsql.NotifyOff} }

func stream(d *testdb.DB) *testdb.DB {
	d.Helper()
	d.Exec(`DROP INDEX outbox_events_fresh`)
	return d
}

// follower is a reader of a log, with the resources that it needs.
type follower struct {
	*testdb.DB
	*Reader
	w  *WriterScanner
	on *session.Conn
}

func follow(d *testdb.DB, head int64, open idset.Set) *follower {
	d.Helper()
	w := NewWriterScanner()
	return &follower{d, NewReader(head, open, w), w, session.Direct(d.Relay())}
}

// read reads, and returns the ids.
func (t *follower) read(q Query) (ids []int64, b Batch) {
	t.Helper()
	if q.Limit == 0 {
		q.Limit = 1000
	}
	b, err := t.Read(t.Context(), t.on, q)
	if err != nil {
		t.Fatal(err)
	}
	ids = []int64{}
	for i := range b.Events {
		ids = append(ids, b.Events[i].ID)
	}
	return ids, b
}

// scan scans at once.
func (t *follower) scan() {
	t.Helper()
	t.Apply(t.scanOnly())
}

// scanOnly scans, without applying the scan to the reader.
func (t *follower) scanOnly() *WriterScan {
	t.Helper()
	t.Wait()
	t.w.next = t.w.next.Add(-time.Hour)
	look, err := t.w.Scan(t.Context(), t.on, "")
	if err != nil {
		t.Fatal(err)
	}
	return look
}

// expect reads, and fails the test unless it gets these ids and leaves these gaps.
func (t *follower) expect(what, gaps string, want ...int64) {
	t.Helper()
	ids, _ := t.read(Query{})
	if !slices.Equal(ids, want) || t.Gaps().String() != gaps {
		t.Errorf("%s: read %v and left %v, want %v and %s", what, ids, t.Gaps(), want, gaps)
	}
}

// insert inserts an event of an aggregate.
const insert = `INSERT INTO outbox_events (event_type, aggregate_type, aggregate_id, payload) VALUES ('a', 'order', '1', '{}')`
