package relaytest

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	"github.com/notifyd/notifyd"
)

// TestStreamSearchFollows: while writers never rest, the search for events without a route follows what destinations have read, gaps are left
// behind, and an event of a type that no destination gets is found all the same.
func TestStreamSearchFollows(t *testing.T) {
	t.Parallel()
	r := newRouting(t)
	relay, err := notifyd.New(r.pool, notifyd.WithLogger(slog.New(slog.NewTextHandler(t.Output(), nil)))) // polls as often as usual
	if err != nil {
		t.Fatal(err)
	}
	if err := relay.Destination("all", notifyd.HandlerFunc(func(context.Context, *notifyd.Event) error { return nil })); err != nil {
		t.Fatal(err)
	}
	if err := relay.Route("one", "all"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	work.Go(func() {
		if err := relay.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	<-relay.Ready()
	writers, stop := context.WithCancel(t.Context())
	defer stop()
	for range 2 {
		work.Go(func() {
			for writers.Err() == nil {
				if _, err := r.pool.Exec(t.Context(), `INSERT INTO outbox_events (event_type, payload) VALUES ('one', '{}')`); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	last := int64(0)
	for range 3 {
		r.until("the search has passed a thousand", `SELECT head > $1 + 1000 FROM outbox_positions WHERE destination = ''`, last)
		if err := r.pool.QueryRow(t.Context(), `SELECT nextval('outbox_events_id_seq')`).Scan(&last); err != nil { // no event has it
			t.Fatal(err)
		}
		r.until("the search has left it behind", `SELECT head > $1 AND NOT open @> $1::bigint FROM outbox_positions WHERE destination = ''`, last)
	}
	r.write(50, "none")
	r.until("events without a route are found", `SELECT count(*) = 50 FROM outbox_deliveries WHERE state = 'unrouted'`)
	r.write(50, "none")
	r.until("others are, too", `SELECT count(*) = 100 FROM outbox_deliveries WHERE state = 'unrouted'`)
	stop()
}
