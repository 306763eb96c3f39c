package integration

import (
	"testing"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestIDsThatWritersChose: the identity column takes explicit ids.
func TestIDsThatWritersChose(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	e, h := newEnv(t), newRecorder(t)
	e.exec(`INSERT INTO outbox_events (id, event_type, payload) VALUES (-9223372036854775807, 'n', '1'), (-1, 'n', '1'), (0, 'n', '1'), (9223372036854775807, 'n', '1')`)
	e.relay(handleAll(t, h, delivery.Lane{}), notifyd.Config{PollingOnly: true})
	e.untilDone()
	e.exec(`INSERT INTO outbox_events (id, event_type, payload) SELECT i, 'n', '1' FROM generate_series(-2000, -2) AS i`)
	e.insert("n", `1`) // far below the highest id so far
	e.untilDone()
}
