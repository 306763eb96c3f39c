package relaytest

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

var errRolledBack = errors.New("rolled back")

// TestStreamSearchFollows: while writers never rest, the search for events without a route follows what destinations have read, gaps are left
// behind, and an event of a type that no destination gets is found all the same.
func TestStreamSearchFollows(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	r := newRouting(t)
	relay, err := notifyd.New(r.pool, notifyd.Config{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}) // polls as often as usual
	if err != nil {
		t.Fatal(err)
	}
	if err := relay.Add(notifyd.Destination{Name: "all", Handler: delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return nil })}); err != nil {
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
	for range 6 {
		work.Go(func() {
			for i := 0; writers.Err() == nil; i++ {
				err := pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
					_, err := tx.Exec(t.Context(), `INSERT INTO outbox_events (event_type, payload) SELECT 'one', '{}' FROM generate_series(1, 3)`)
					if err == nil && i%10 == 0 {
						err = errRolledBack
					}
					return err
				})
				if err != nil && !errors.Is(err, errRolledBack) {
					t.Error(err)
					return
				}
			}
		})
	}
	for n := range 4 {
		r.until("the search goes on, and its gaps end", `SELECT head > $1 AND (SELECT count(*) FROM unnest(open)) < 100 FROM outbox_positions WHERE destination = ''`, 5000*(n+1))
	}
	r.write(50, "none")
	r.until("events without a route are found", `SELECT count(*) = 50 FROM outbox_deliveries WHERE state = 'unrouted'`)
	r.write(50, "none")
	r.until("others are, too", `SELECT count(*) = 100 FROM outbox_deliveries WHERE state = 'unrouted'`)
	stop()
}
