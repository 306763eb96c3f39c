//go:build unix

package main

import (
	"strings"
	"testing"
)

// TestStreamsPage runs docs/streams.md: a destination that is new reads the past, reads it again, and is
// forgotten.
func TestStreamsPage(t *testing.T) {
	t.Parallel()
	s := newStage(t, database(t))
	if got := invoke(t, "migrate", "--mode", "stream", "--database-url", s.url); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	config := s.config("docs/streams.md")
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
		"notifyd plan":                 {before: func() { s.write("notifyd.yaml", config) }},
		"notifyd positions show stock": {before: func() { past("stock", "3") }},
		"notifyd positions forget stock --dry-run": {
			before: func() {
				past("stock", "6")
				s.write("notifyd.yaml", before)
				s.until("notifyd reload")
				until(t, s.url, `SELECT owner IS NULL FROM outbox_positions WHERE destination = 'stock'`)
			},
		},
	})
	s.stop()
}
