package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/cmd/internal/command"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/store"
)

// TestModeNamesRelays: a refused conversion names relays by host and process, also to an owner of the tables who may not see
// the sessions of others.
func TestModeNamesRelays(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			super := database(t)
			owner, asOwner := login(t, super, "owner")
			execute(t, super, `CREATE SCHEMA own AUTHORIZATION `+pgx.Identifier{owner}.Sanitize())
			if r := invoke(t, "migrate", "--database-url", asOwner, "--mode", mode, "--schema", "own"); r.code != 0 {
				t.Fatalf("%+v", r)
			}
			config := file(t, fmt.Sprintf("version: 1\ndatabase: {url: %q, schema: own}\nlog: {format: json}\ndestinations:\n  audit: {type: log}\nroutes: [{match: '*', to: [audit]}]\n", super))
			p := startProcess(t, "", "run", "-c", config)
			p.stderr.await(t, `"relay started"`)
			until(t, super, `SELECT EXISTS (SELECT FROM own.outbox_relays)`)

			other := map[string]string{"queue": "stream", "stream": "queue"}[mode]
			r := invoke(t, "migrate", "--database-url", asOwner, "--schema", "own", "--mode", other)
			want := fmt.Sprintf("relays are at work on outbox_events (%s, process %d): stop them", store.ThisHost(), p.cmd.Process.Pid)
			if r.code != command.ExitFailure || !strings.Contains(r.stderr, want) {
				t.Errorf("no %q in %+v", want, r)
			}
		})
	}
}
