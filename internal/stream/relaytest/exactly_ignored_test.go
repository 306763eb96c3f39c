package relaytest

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestExactlyOnceIgnored: a trigger ignores a write that belongs to a position whose copy the destination keeps. The relay
// names the cause, does not take it for the write of another relay, and delivers nothing twice.
func TestExactlyOnceIgnored(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		on    string
		stays bool // a row whose delivery the copy has
	}{
		"the position at the start": {on: `UPDATE ON outbox_positions FOR EACH ROW WHEN (OLD.sealed <> NEW.sealed AND NEW.updated_at <> OLD.updated_at)`},
		"a checkpoint":              {on: `UPDATE ON outbox_positions FOR EACH ROW WHEN (OLD.sealed <> NEW.sealed AND NEW.updated_at = OLD.updated_at)`},
		"a delivered row":           {on: `DELETE ON outbox_deliveries FOR EACH ROW`, stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newExactLife(t)
			row := func() {
				l.exec(`INSERT INTO outbox_deliveries (event_id, destination, event_type, state, ordering_key) VALUES (5, 'exactly', 'one', 'retry', 'a/5')`)
			}
			l.write(10)
			l.more(ascending(1, 10)...)
			if c.stays {
				row()
				l.more(5)
				row()
			}
			delivered := len(l.ids(0))
			l.exec(`CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
			l.exec(`CREATE TRIGGER mine BEFORE ` + c.on + ` EXECUTE FUNCTION mine()`)
			l.write(10)

			r, stop := l.start()
			testenv.Await(t, "refusals", func() bool {
				var n uint64
				for _, one := range r.Stats().Refusals {
					if one.Code != "02000" || !strings.Contains(one.Cure, "rule") {
						t.Errorf("refusal %+v", one)
					}
					n += one.Count
				}
				return n >= 3
			})
			if got := l.ids(delivered); len(got) > 0 {
				t.Errorf("%v came while a write was ignored", got)
			}
			stop()

			l.exec(`DROP FUNCTION mine CASCADE`)
			l.more(ascending(11, 20)...)
		})
	}
}

// start starts a relay.
func (l *exactLife) start() (r *notifyd.Relay, stop func()) {
	l.t.Helper()
	r, err := notifyd.New(l.pool, notifyd.Config{Logger: slog.New(slog.NewTextHandler(l.t.Output(), nil))})
	if err != nil {
		l.t.Fatal(err)
	}
	if err := errors.Join(l.cluster.add(r, &client{cluster: l.cluster}, l.lane), r.Route("*", exactly)); err != nil {
		l.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(l.t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return r, func() {
		cancel()
		if err := <-done; err != nil {
			l.t.Errorf("the relay ended with: %v", err)
		}
	}
}
