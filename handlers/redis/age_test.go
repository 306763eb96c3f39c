package redis

import (
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// TestConnectionsHaveAnAge: a connection that is always in use is replaced.
func TestConnectionsHaveAnAge(t *testing.T) {
	t.Parallel()
	place := testenv.Redis(t)
	h := open(t, place.URL, to(place.Name))
	h.age = 1
	deliverytest.Deliver(t, h, events(1))
	l := idleLanes(h)[0]
	deliverytest.Deliver(t, h, events(2))
	deliverytest.Deliver(t, h, events(3))
	if s := l.client.PoolStats(); s.StaleConns != 2 || idleLanes(h)[0] != l {
		t.Errorf("%+v", s)
	}
}
