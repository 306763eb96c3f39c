package integration

import (
	"errors"
	"testing"

	"github.com/notifyd/notifyd"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestModeEndsRelay: a relay of a queue whose sessions were lost, and that comes
// back to a stream, ends with an error, as one does that starts there. No event
// is claimed.
func TestModeEndsRelay(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	rec := newRecorder(t)
	register := func(r *notifyd.Relay) {
		if err := r.Handle("*", rec); err != nil {
			t.Error(err)
		}
	}
	r := e.relay(register)
	e.exec(`BEGIN; UPDATE outbox_mode SET mode = 'stream';
		INSERT INTO outbox_events (event_type, payload) SELECT 'a', '1' FROM generate_series(1, 10);
		SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'notifyd/%'; COMMIT`)
	for _, r := range []*running{r, e.start(register)} {
		if err := <-r.done; !errors.Is(err, outboxsql.ErrMode) {
			t.Errorf("ended with %v", err)
		}
		r.done <- nil // for the end of the test
	}
	if n := scan[int](e, `SELECT count(*) FROM outbox_events WHERE state <> 'fresh'`); n > 0 {
		t.Errorf("%d events of a stream were marked", n)
	}
}
