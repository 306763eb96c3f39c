//go:build unix

package main

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestStreamsPage runs docs/streams.md: a destination that is new reads the past, reads it again, and is
// forgotten.
func TestStreamsPage(t *testing.T) {
	t.Parallel()
	s := newStage(t, database(t))
	if got := invoke(t, "migrate", "--mode", "stream", "--database-url", s.url); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	config := ""
	for _, st := range steps(testenv.ReadFile(t, root+"docs/streams.md")) {
		if st.language == "yaml" {
			config = s.own.Replace(st.text) + "admin: {listen: '" + s.address + "'}\n"
		}
	}
	before := strings.NewReplacer("  stock: {type: log, output: stderr, payload: false, start_from: beginning}\n", "", "[mail, stock]", "[mail]").Replace(config)
	s.relay(before)
	for range 3 {
		publishTo(t, s.url, "order.placed", `{"order": 1}`)
	}
	const atEnd = `SELECT EXISTS (SELECT FROM outbox_positions WHERE destination = '%' AND head = outbox_last_id() AND open = '{}' AND delivered = `
	past := func(destination, delivered string) {
		t.Helper()
		until(t, s.url, strings.Replace(atEnd, "%", destination, 1)+delivered+`)`)
	}
	past("mail", "3")
	s.follow("docs/streams.md", map[string]act{
		"notifyd positions list":      {says: `(?m)^mail +3 +0 +0 +3 `},
		"notifyd positions show mail": {says: `routes +from 1 on: order\.\*`},
		"notifyd plan":                {before: func() { s.write("notifyd.yaml", config) }, says: `stock begins at event 1: 3 kept events of order\.\*`},
		"notifyd reload --yes":        {says: `has taken the new configuration`},
		"notifyd positions show stock": {
			before: func() { past("stock", "3") },
			says:   `(?m)^stock +3 +0 +0 +3 `,
		},
		"notifyd replay --destination stock --dry-run": {
			before: func() { past("stock", "3") },
			says:   `stock would receive 3 events again, ids 1 to 3`,
		},
		`notifyd replay --destination stock --type 'order.*' --rate 500 --reason "lost on Tuesday" --yes --wait`: {says: `outcome +delivered 3, waiting 0, dead 0, passed over 0`},
		"notifyd replay list":   {says: `(?m)^1 +stock +1 +3 +done +3 +0 +3 +0 +0 `},
		"notifyd replay show 1": {says: `replay +1, done`},
		"notifyd positions seek stock 2026-11-01T00:00:00Z --dry-run":        {says: `would continue above id 0: what it has received since, up to id 3, comes again`},
		`notifyd positions seek stock beginning --reason "new column" --yes`: {says: `stock continues above id 0`},
		"notifyd positions forget stock --dry-run": {
			before: func() {
				past("stock", "6")
				s.write("notifyd.yaml", before)
				s.until("notifyd reload")
				until(t, s.url, `SELECT owner IS NULL FROM outbox_positions WHERE destination = 'stock'`)
			},
			says: `would remove the position of stock \(head 3\) and its 0 stored deliveries`,
		},
	})
	s.stop()
}
