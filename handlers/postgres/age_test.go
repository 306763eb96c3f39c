package postgres

import (
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv/testdb"
)

// TestConnectionsHaveAnAge: a connection that is always in use is replaced.
func TestConnectionsHaveAnAge(t *testing.T) {
	t.Parallel()
	url := inbox(t, `ALTER TABLE received_events ADD COLUMN pid int DEFAULT pg_backend_pid()`)
	h := open(t, url)
	h.age = 1
	for _, e := range events(3) {
		if err := h.Deliver(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	var sessions int
	if err := testdb.Connect(t, url).QueryRow(t.Context(), `SELECT count(DISTINCT pid) FROM received_events`).Scan(&sessions); err != nil || sessions != 3 {
		t.Errorf("%d connections for 3 rows: %v", sessions, err)
	}
}
