package main

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestBytesPage types docs/bytes.md beside a relay with a log.
func TestBytesPage(t *testing.T) {
	t.Parallel()
	s := newStage(t, database(t))
	s.relay(auditOnly)
	s.follow("docs/bytes.md", map[string]act{
		"notifyd publish order.created @order.pb --content-type application/x-protobuf --aggregate order/1042": {
			after: func(string) { until(t, s.url, `SELECT bool_and(state = 'done') FROM outbox_events`) },
		},
		"sql 1": {after: func(string) { until(t, s.url, `SELECT count(*) = 2 AND bool_and(state = 'done') FROM outbox_events`) }},
	})
	if got := testenv.ReadFile(t, s.dir+"/events.log"); strings.Count(got, `"content_type":"application/x-protobuf","payload_size":8}`) != 2 {
		t.Errorf("the log has\n%s", got)
	}
}
