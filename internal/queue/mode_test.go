package queue

import (
	"errors"
	"testing"

	outboxsql "github.com/notifyd/notifyd/sql"
)

// TestModeIsHeld: while a session that claims or settles is open, the table stays a queue. A
// session that reconnects to a stream does nothing, and reports it.
func TestModeIsHeld(t *testing.T) {
	t.Parallel()
	d := newDB(t)
	var refused []error
	o := options()
	o.Refused = func(err error) { refused = append(refused, err) }
	k, s := d.maintenance(o), d.session(o)
	d.hold(k)
	d.Insert("a", 1)
	s.Close(t.Context())
	const guard = `1853122168::bigint << 32 | 'outbox_mode'::regclass::oid::bigint`
	d.expect("beside the maintenance session", `SELECT pg_try_advisory_lock(`+guard+`)::text`, "false")
	k.Close(t.Context())
	d.Exec(`SELECT pg_advisory_lock(` + guard + `)`) // waits for the end of the session
	if _, err := s.Claim(t.Context(), Query{Source: SourceSweep, Upto: 1, Limit: 1}); !errors.Is(err, outboxsql.ErrModeChanging) {
		t.Errorf("a claim while the mode is changed: %v", err)
	}
	if len(refused) > 0 {
		t.Errorf("refused for good: %v", refused)
	}
	d.Exec(`UPDATE outbox_mode SET mode = 'stream'; SELECT pg_advisory_unlock(` + guard + `)`)
	_, err := s.Claim(t.Context(), Query{Source: SourceSweep, Upto: 1, Limit: 1})
	for what, err := range map[string]error{"claim": err, "maintenance": k.Hold(t.Context())} {
		if !errors.Is(err, outboxsql.ErrMode) {
			t.Errorf("%s of a stream: %v", what, err)
		}
	}
	if len(refused) != 2 || !errors.Is(refused[0], outboxsql.ErrMode) {
		t.Errorf("refused %v", refused)
	}
}
