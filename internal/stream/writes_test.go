package stream

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/deliveries"
	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
	"github.com/notifyd/notifyd/internal/lease"
	"github.com/notifyd/notifyd/internal/position"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/tail"
)

// TestAcknowledgedWhileWritten: an event acknowledged after the position was counted, and before it
// is written, is open in it. If nothing else ever happens, one more write closes it.
func TestAcknowledgedWhileWritten(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	answer, answered := make(chan struct{}), make(chan struct{})
	d, err := dispatch.New(dispatch.Config{Window: 50 * time.Millisecond}, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	h := delivery.HandlerFunc(func(context.Context, *delivery.Event) error {
		<-answer
		return nil
	})
	if err := d.Add("all", h, dispatch.LaneConfig{}); err != nil {
		t.Fatal(err)
	}
	d.Begin(t.Context())
	lane := d.StreamLanes()[0]
	lane.Own(func() {})
	l.Exec(`INSERT INTO outbox_positions (destination, head, epoch) VALUES ('all', 0, 1)`)
	p := position.Position{Lease: lease.Lease{Destination: "all", Epoch: 1, PositionID: testdb.One[int32](l.DB, l.Conn, `SELECT number FROM outbox_positions`)}}
	sh := newShard(&Engine{writers: tail.NewWriterScanner()}, lane, p)
	sh.reader = tail.NewReader(7, nil, sh.e.writers)

	batch := dispatch.NewBatch(func() bool { return true }, func(last bool) {
		if last {
			close(answered)
		}
	})
	sh.inFlight.deliver(batch, []dispatch.Delivery{{Event: &delivery.Event{ID: 7, Type: "a"}}}, nil, sh.inFlight.reserve(1))
	c := sh.snapshot()
	close(answer)
	<-answered
	if err := sh.saveSnapshot(t.Context(), session.Direct(l.Conn), c); err != nil {
		t.Fatal(err)
	}
	stored := func() string {
		return testdb.List[string](l.DB, l.Conn, `SELECT head || ' ' || open::text || ' ' || delivered FROM outbox_positions`)[0]
	}
	if got := stored(); got != "7 {[7,8)} 1" {
		t.Errorf("written is %s, and event 7 was open when it was counted", got)
	}
	sh.progress.at = time.Now().Add(-sh.progress.wait)
	if !sh.progress.due() {
		t.Fatal("nothing more is to be written, and event 7 stays open for ever")
	}
	if err := sh.save(t.Context(), session.Direct(l.Conn)); err != nil {
		t.Fatal(err)
	}
	if got := stored(); got != "7 {} 1" || sh.progress.due() {
		t.Errorf("in the end written is %s", got)
	}
}

// TestWrittenAndRemoved: after a seek an event is read again, fails, and becomes a row, while its earlier row is delivered.
// Both outcomes may be in one write, which no trigger has ignored.
func TestWrittenAndRemoved(t *testing.T) {
	t.Parallel()
	for _, fresh := range []bool{true, false} {
		l := newLog(t)
		l.Exec(insert)
		l.Exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state) VALUES (1, 'all', 'a', 'retry')`)
		var w writes
		w.put(entry{Entry: deliveries.Entry{Ref: deliveries.Ref{EventID: 1}, EventType: "a", State: deliveries.Retry}, fresh: fresh})
		w.remove(1)
		w.remove(1) // by the event that was read again

		err := pgx.BeginFunc(t.Context(), l.Conn, func(tx pgx.Tx) error { return w.write(t.Context(), tx, "all", 0, "") })
		if rows := testdb.One[int](l.DB, l.Conn, `SELECT count(*) FROM outbox_deliveries`); err != nil || rows != 0 {
			t.Errorf("fresh %t: %v, %d rows are left", fresh, err, rows)
		}
	}
}
