package integration

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestWriterThatWasSilentCommitsLater: a relay falls asleep, and then a writer
// commits that was silent because of the relay.
func TestWriterThatWasSilentCommitsLater(t *testing.T) {
	t.Parallel()
	for _, mode := range bothModes() {
		for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
			t.Run(string(mode)+"/"+string(level), func(t *testing.T) {
				t.Parallel()
				e, h, g := newEnvIn(t, mode), newRecorder(t), newGate()
				h.answer = func(ctx context.Context, _ *notifyd.Event) error {
					select {
					case <-g.pass():
					case <-ctx.Done():
					}
					return ctx.Err()
				}
				e.relay(handleAll(t, h), notifyd.WithPollInterval(never))
				for range 20 { // on a busy machine the relay may be asleep for a moment
					if e.commitLate(g, level) {
						return
					}
				}
				t.Error("the writer was never silent, which proves nothing")
			})
		}
	}
}

// commitLate reports whether the writer was silent.
func (e *env) commitLate(g *gate, level pgx.TxIsoLevel) (silent bool) {
	e.t.Helper()
	calm := e.keepAwake(g)
	tx, err := e.pool.BeginTx(e.ctx, pgx.TxOptions{IsoLevel: level})
	if err != nil {
		e.t.Fatal(err)
	}
	var id int64
	if err := tx.QueryRow(e.ctx, `INSERT INTO outbox_events (event_type, payload) VALUES ('late', '1') RETURNING id`).Scan(&id); err != nil {
		e.t.Fatal(err)
	}
	heard := e.listen() // the transaction's notifications come with its commit
	calm()
	e.untilDone()
	e.until("bell released", `SELECT NOT (`+holdsBell+`)`)
	e.letDoze()
	if err := tx.Commit(e.ctx); err != nil {
		e.t.Fatal(err)
	}
	e.untilState(id, "done")
	e.exec(`NOTIFY outbox_events, 'end'`)
	return len(rings(heard("end"))) == 0
}

// keepAwake returns when the relay is awake and the bell silent, which lasts
// until calm is called or soon ends: the relay of a queue has more events than
// room while the gate is shut, and that of a stream has had ever more events
// until now. The next event is the last one, so that no gap of ids makes the
// relay look for it.
func (e *env) keepAwake(g *gate) (calm func()) {
	e.t.Helper()
	if e.mode == outboxsql.ModeStream {
		p := startPump(e.ctx, e.pool)
		e.until("bell silent", holdsBell)
		if err := p.end(); err != nil {
			e.t.Fatal(err)
		}
		return func() {}
	}
	g.shut()
	e.exec(`INSERT INTO outbox_events (event_type, payload) SELECT 'n', '1' FROM generate_series(1, 5000)`)
	e.until("bell silent", holdsBell)
	return g.open
}
