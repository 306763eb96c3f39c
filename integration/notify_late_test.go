package integration

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestWriterThatWasSilentCommitsLater: a relay settles, and then a writer
// commits that was silent because of the relay.
func TestWriterThatWasSilentCommitsLater(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range bothModes() {
		for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
			t.Run(string(mode)+"/"+string(level), func(t *testing.T) {
				t.Parallel()
				e, h := newEnvIn(t, mode), newRecorder(t)
				e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{PollInterval: never})
				for range 20 { // on a busy machine the relay may listen for a moment
					if e.commitLate(level) {
						return
					}
				}
				t.Error("the writer was never silent, which proves nothing")
			})
		}
	}
}

// commitLate reports whether the writer was silent.
func (e *env) commitLate(level pgx.TxIsoLevel) (silent bool) {
	e.t.Helper()
	e.keepAwake()
	tx, err := e.pool.BeginTx(e.ctx, pgx.TxOptions{IsoLevel: level})
	if err != nil {
		e.t.Fatal(err)
	}
	var id int64
	if err := tx.QueryRow(e.ctx, `INSERT INTO outbox_events (event_type, payload) VALUES ('late', '1') RETURNING id`).Scan(&id); err != nil {
		e.t.Fatal(err)
	}
	heard := e.listen() // the transaction's notifications come with its commit
	e.untilDone()
	e.until("notifications released", `SELECT NOT (`+suppressed+`)`)
	e.letSettle()
	if err := tx.Commit(e.ctx); err != nil {
		e.t.Fatal(err)
	}
	e.untilState(id, "done")
	e.exec(`NOTIFY outbox_events, 'end'`)
	return len(rings(heard("end"))) == 0
}

// keepAwake returns when the relay has been made to poll, by ever more events until now. The next event is the last one, so
// that no gap of ids makes the relay of a stream look for it.
func (e *env) keepAwake() {
	e.t.Helper()
	p := startPump(e.ctx, e.pool, e.mode)
	e.until("notifications suppressed", suppressed)
	if err := p.end(); err != nil {
		e.t.Fatal(err)
	}
}
