//go:build unix

package main

import (
	"path"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestOutboxesPage types docs/outboxes.md: the configurations run, and the commands do what the page says.
func TestOutboxesPage(t *testing.T) {
	t.Parallel()
	billing, _, _ := strings.Cut(path.Base(testenv.Database(t)), "?")
	s := newStage(t, testenv.Database(t), "database: billing", "database: "+billing)
	execute(t, s.url, `CREATE TABLE tenants (name text, schema_name text, active bool); INSERT INTO tenants VALUES ('north', 'north', true), ('south', 'none', false)`)
	relayed := &tenants{address: s.address}
	up := func(names ...string) func(string) {
		return func(string) { relayed.up(t, names...) }
	}
	s.follow("docs/outboxes.md", map[string]act{
		"yaml 1":                        {run: s.launch, after: func(string) { relayed.get(t, "/metrics", has(`notifyd_outbox_up{outbox="north"} 0`)) }},
		"notifyd migrate --mode stream": {after: up("north", "south", "billing")},
		`notifyd publish invoice.sent '{"number": 7}' --outbox billing`: {after: func(string) {
			s.until(`grep -c '"destination":"ledger","outbox":"billing"' events.log`)
		}},
		"yaml 2": {run: s.serve, after: up("north")},
		"sql 1":  {after: func(string) { relayed.get(t, "/metrics", has(`notifyd_outbox_up{outbox="east"} 0`)) }},
		"notifyd migrate --outbox east --mode stream": {after: up("east")},
	})
	s.until("notifyd healthcheck")
	s.stop()
}
