package main

import (
	"context"
	"errors"
	"regexp"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/notifyd/notifyd"
	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/webhook"
	"github.com/notifyd/notifyd/internal/testenv"
)

// embed runs a relay of this process, as a program with the library does, until the test ends.
func embed(t *testing.T, url string, all ...notifyd.Destination) *notifyd.Relay {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	relay, err := notifyd.New(pool, notifyd.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		if err := relay.Handle(d.Name+".*", d); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		pool.Close()
	})
	testenv.Receive(t, patience, "the relay is not ready", relay.Ready())
	return relay
}

// TestStatusOfEmbeddedRelay: a relay without a file and without an admin server is described by its row.
func TestStatusOfEmbeddedRelay(t *testing.T) {
	t.Parallel()
	for _, mode := range modes() {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			url := databaseOf(t, mode)
			hook, err := webhook.New(webhook.Config{URL: "http://127.0.0.1:1/"})
			if err != nil {
				t.Fatal(err)
			}
			var up atomic.Bool
			stock := delivery.HandlerFunc(func(context.Context, *delivery.Event) error {
				if !up.Load() {
					return delivery.Unavailable(errors.New("no route to the warehouse"))
				}
				return nil
			})
			embed(t, url, notifyd.Destination{Name: "shop", Handler: hook}, notifyd.Destination{Name: "stock", Handler: stock})
			shows := func(patterns ...string) {
				t.Helper()
				r := invoke(t, "status", "--database-url", url)
				for _, p := range patterns {
					if !regexp.MustCompile(p).MatchString(r.stdout) {
						t.Errorf("no %s in\n%s%s", p, r.stdout, r.stderr)
					}
				}
				if regexp.MustCompile(`(?m)^(shop|stock) .*\?`).MatchString(r.stdout) {
					t.Errorf("something is unknown in\n%s", r.stdout)
				}
			}
			until(t, url, `SELECT EXISTS (SELECT FROM outbox_relays WHERE jsonb_array_length(destinations) = 2)`)
			shows(`(?m)^shop +up +webhook +0`, `(?m)^stock +up +delivery\.HandlerFunc +0`)

			publishTo(t, url, "stock.low", "{}")
			until(t, url, `SELECT destinations @> '[{"name": "stock", "down": true}]' FROM outbox_relays`)
			shows(`(?m)^shop +up `, `(?m)^stock +down `, `The destination stock has been down for .*: no route to the warehouse`)

			up.Store(true)
			until(t, url, `SELECT destinations @> '[{"name": "stock", "breaker": "closed"}]' FROM outbox_relays`)
			shows(`(?m)^stock +up `)
		})
	}
}

// TestStatusNamesWhatNoRelayHas: events that wait for a destination that no live relay has are not just in an unknown state.
func TestStatusNamesWhatNoRelayHas(t *testing.T) {
	t.Parallel()
	url := database(t)
	embed(t, url, notifyd.Destination{Name: "stock", Handler: delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return nil })})
	until(t, url, `SELECT EXISTS (SELECT FROM outbox_relays WHERE destinations IS NOT NULL)`)
	id := publishTo(t, url, "fax.sent", "{}")
	until(t, url, `SELECT count(*) = 1 FROM outbox_deliveries WHERE state = 'unrouted'`)
	execute(t, url, `UPDATE outbox_deliveries SET destination = 'fax', state = 'retry', attempts = 1, last_error = 'gone' WHERE event_id = `+id)

	r := invoke(t, "status", "--database-url", url)
	for _, p := range []string{`(?m)^fax +not configured +-`, `No relay has a destination fax, and 1 delivery waits for it\.`} {
		if !regexp.MustCompile(p).MatchString(r.stdout) {
			t.Errorf("no %s in\n%s%s", p, r.stdout, r.stderr)
		}
	}
}
