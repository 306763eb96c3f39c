package handlertest

import (
	"sync"

	"github.com/notifyd/notifyd/delivery"
)

// ledger counts deliveries, to know how many copies to expect.
type ledger struct {
	mu     sync.Mutex
	sent   []*delivery.Event // in the order of their first delivery
	failed map[int64]int     // deliveries that returned an error
}

func (l *ledger) send(events []*delivery.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent = append(l.sent, events...)
}

func (l *ledger) fail(id int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil {
		l.failed = make(map[int64]int)
	}
	l.failed[id]++
}

// failures returns how often the event with the most failures has failed.
func (l *ledger) failures() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	most := 0
	for _, n := range l.failed {
		most = max(most, n)
	}
	return most
}

// failing waits for a delivery, records the failures, and returns the failed events.
func (l *ledger) failing(dl *call) []*delivery.Event {
	dl.p.Helper()
	var failed []*delivery.Event
	for i, err := range dl.answers() {
		if err != nil {
			l.fail(dl.events[i].ID)
			failed = append(failed, dl.events[i])
		}
	}
	return failed
}

// checkArrived checks the arrivals of a ledger after one fault with inFlight events:
// all, not too often, in order.
func (p *probe) checkArrived(l *ledger, inFlight int) {
	p.Helper()

	ids := idsOf(l.sent)
	arrived := p.await(ids)

	copies := 0
	for id, n := range countOf(arrived) {
		copies += n - 1
		if allowed := 1 + l.failed[id] + p.d.Resends; n > allowed {
			p.Errorf("event %d came %d times, after %d failed deliveries: want at most %d", id, n, l.failed[id], allowed)
		}
	}

	if allowed := inFlight * (1 + p.d.Resends); copies > allowed {
		p.Errorf("%d copies came of one fault with %d events in flight: want at most %d: %v", copies, inFlight, allowed, repeated(arrived))
	}

	if p.d.Ordered {
		p.checkOrder(l.sent, arrived)
	}

	p.Logf("%d events arrived, %d of them failed at first, %d came again", len(ids), len(l.failed), copies)
}

// checkOrder checks that the first arrivals of each aggregate are in the order
// of sent.
func (p *probe) checkOrder(sent []*delivery.Event, arrived []int64) {
	p.Helper()

	type aggregate struct{ kind, id string }

	first := make(map[int64]int, len(arrived))
	for i, id := range arrived {
		if _, again := first[id]; !again {
			first[id] = i
		}
	}

	before := make(map[aggregate]*delivery.Event)
	for _, e := range sent {
		key := aggregate{e.AggregateType, e.AggregateID}
		if key.id == "" {
			continue // it has no order to keep
		}

		if prev := before[key]; prev != nil && first[prev.ID] > first[e.ID] {
			p.Errorf("event %d of aggregate %s overtook event %d", e.ID, e.AggregateID, prev.ID)
			return
		}
		before[key] = e
	}
}
