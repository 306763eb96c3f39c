package notifyd

import (
	"context"
	"errors"
	"testing"

	"github.com/notifyd/notifyd/delivery"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// outages is an observer of destinations that become unavailable.
type outages chan delivery.Incident

// Observe implements Observer.
func (o outages) Observe(i delivery.Incident) {
	if i.Kind == delivery.IncidentUnavailable {
		o <- i
	}
}

// TestUnitComesBack: a relay that gets a unit again after it has lost it begins without what it knew about the destination, which
// another relay may have found to be up since. That it is down still is news.
func TestUnitComesBack(t *testing.T) {
	t.Parallel()
	pool := tables(t, outboxsql.ModeStream)
	news := make(outages, 10)
	relay, err := New(pool, WithObserver(news))
	if err != nil {
		t.Fatal(err)
	}
	err = relay.Handle("mail", "*", delivery.HandlerFunc(func(context.Context, *delivery.Event) error { return delivery.Unavailable(errors.New("away")) }))
	if err != nil {
		t.Fatal(err)
	}
	p := &patient{T: t, Relay: relay}
	p.start()
	execute(t, pool, insertThree)
	<-news
	execute(t, pool, `UPDATE outbox_positions SET epoch = epoch + 1 WHERE destination = 'mail'`) // by another relay, or by hand
	<-news
}
