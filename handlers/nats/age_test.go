package nats

import (
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// TestCheckLeavesItsConnection: an old connection that Check has used ends with its last delivery.
func TestCheckLeavesItsConnection(t *testing.T) {
	t.Parallel()
	place := testenv.NATS(t)
	_, js := client(t, place.URL)
	newStream(t, js, jetstream.StreamConfig{Name: place.Name, Subjects: []string{place.Name}})
	h := open(t, place.URL, to(place.Name))
	if err := h.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	checked := h.link
	h.age = 0
	deliverytest.Deliver(t, h, events(1))
	testenv.Receive(t, patience, "the end of the old connection", checked.gone)
}

// TestConnectionsHaveAnAge: a connection that is always in use is replaced, and no delivery notices.
func TestConnectionsHaveAnAge(t *testing.T) {
	t.Parallel()
	place := testenv.NATS(t)
	_, js := client(t, place.URL)
	newStream(t, js, jetstream.StreamConfig{Name: place.Name, Subjects: []string{place.Name}})
	h := open(t, place.URL, to(place.Name))
	h.age = 5 * time.Millisecond
	links := make(map[*link]bool)
	sent := 0
	more := func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.link != nil {
			links[h.link] = true
		}
		if len(links) >= 5 {
			return false
		}
		sent++
		return true
	}
	var senders sync.WaitGroup
	for sender := range int64(4) {
		senders.Go(func() {
			for i := int64(1); more(); i++ {
				if err := h.Deliver(t.Context(), events(1000*sender + i)[0]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	senders.Wait()
	if n := len(written(t, js, place.Name)); n != sent {
		t.Errorf("of %d messages %d came", sent, n)
	}
	// All but the last are closed with their last user.
	delete(links, h.link)
	for l := range links {
		<-l.gone
	}
}
