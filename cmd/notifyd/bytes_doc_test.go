package main

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestBytesPage types docs/bytes.md beside a relay with a log.
func TestBytesPage(t *testing.T) {
	t.Parallel()
	const page = "docs/bytes.md"
	s := newStage(t, database(t))
	s.relay("version: 1\ndatabase: {url: '${env:DATABASE_URL}'}\ndestinations: {audit: {type: log}}\nroutes: [{match: '*', to: audit}]\nadmin: {listen: 127.0.0.1:9470}\n")
	s.follow(page, map[string]act{
		"notifyd publish order.created @order.pb --content-type application/x-protobuf --aggregate order/1042": {
			says: `^1\n$`, after: func(string) { until(t, s.url, `SELECT bool_and(state = 'done') FROM outbox_events`) },
		},
		"notifyd events show 1 --payload": {after: func(printed string) {
			for _, st := range steps(testenv.ReadFile(t, root+page)) {
				if st.text == "notifyd events show 1 --payload" && masked(printed) != masked(printedBy(t, page, st)) {
					t.Errorf("printed is\n%s\nand not\n%s", printed, printedBy(t, page, st))
				}
			}
		}},
		"sql 1": {after: func(string) { until(t, s.url, `SELECT count(*) = 2 AND bool_and(state = 'done') FROM outbox_events`) }},
	})
	if got := testenv.ReadFile(t, s.dir+"/events.log"); strings.Count(got, `"content_type":"application/x-protobuf","payload_size":8}`) != 2 {
		t.Errorf("the log has\n%s", got)
	}
}
