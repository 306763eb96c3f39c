package handlertest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"

	"github.com/notifyd/notifyd/delivery"
)

// batchSize is a batch as it comes under some load.
const batchSize = 20

// checkOneArrives also shows that Deliver works for handlers that prefer batches.
func checkOneArrives(p *probe) {
	s := p.open()
	e := p.events(1)
	s.mustDeliver(e...)
	p.awaitOnce(idsOf(e))
}

// checkLeftAsItWas: in a fan-out other handlers see the same event.
func checkLeftAsItWas(p *probe) {
	s := p.open()
	events := p.events(3)

	before := make([]*delivery.Event, len(events))
	for i, e := range events {
		c := *e
		c.Payload = slices.Clone(e.Payload)
		c.Headers = maps.Clone(e.Headers)
		before[i] = &c
	}

	s.mustDeliver(events...)
	s.mustDeliver(events[0])

	for i, e := range events {
		if !reflect.DeepEqual(e, before[i]) {
			p.Errorf("the handler has changed the event:\n%+v\nwas\n%+v", e, before[i])
		}
	}
}

// checkBytes sends every byte, and what a handler could take for the end of a text, for JSON, or for nothing.
func checkBytes(p *probe) {
	const kind = "application/vnd.handlertest+avro; v=1"
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}

	s := p.open()

	events := p.events(5)
	for i, payload := range [][]byte{every, {0xff}, []byte("{\"n\": 1}\r\n"), {'7'}} {
		events[i].Payload = payload
		events[i].ContentType = kind
	}

	s.mustDeliver(events...)
	p.awaitOnce(idsOf(events))
	if p.Failed() {
		return
	}

	for _, e := range events {
		body, contentType := p.d.Message(p, e.ID)
		if !bytes.Equal(body, e.Payload) {
			p.Errorf("the payload %q arrived as %q", e.Payload, body)
		}
		if want := cmp.Or(e.ContentType, delivery.ContentTypeJSON); contentType != want {
			p.Errorf("the content type %s arrived as %q", want, contentType)
		}
	}
}

// checkNoData: JSON null and zero bytes are payloads, too. A destination delivers such an event or refuses it for good, even if
// it is unclear at first whether it refuses every event, and is not out of order because of it. What arrives is the payload.
func checkNoData(p *probe) {
	s := p.open()
	events := p.events(2)

	events[0].Payload = []byte("null")
	events[0].ContentType = delivery.ContentTypeJSON
	events[1].Payload = []byte{}
	events[1].ContentType = delivery.ContentTypeBytes

	for i, err := range s.deliver(events...) {
		if err != nil {
			if verdict(delivery.Proven(err)) != "permanent" {
				p.Errorf("an event with the payload %q is %s, want permanent: %v", events[i].Payload, verdict(err), err)
			}
			continue
		}

		if p.d.Received == nil || p.d.Message == nil {
			continue
		}

		p.await(idsOf(events[i : i+1]))
		if body, _ := p.d.Message(p, events[i].ID); !bytes.Equal(body, events[i].Payload) {
			p.Errorf("the payload %q arrived as %q", events[i].Payload, body)
		}
	}
}

func checkBatch(p *probe) {
	s := p.open()
	if s.batch == nil {
		p.Skip("the handler is not a delivery.BatchHandler")
	}

	empty := start(func() {
		if errs := s.batch.DeliverBatch(p.ctx(), nil); len(errs) != 0 {
			panic("it gave answers for a batch without events")
		}
	})

	p.until("DeliverBatch of no events returns", empty.isDone)
	if empty.panicked != "" {
		p.Fatalf("DeliverBatch of no events: %s", empty.panicked)
	}

	events := p.events(batchSize)
	s.mustDeliver(events...)
	arrived := p.awaitOnce(idsOf(events))
	if p.d.Ordered && arrived != nil {
		p.checkOrder(events, arrived)
	}
}

// checkBadFailsAlone: a refused event leaves the other events alone.
func checkBadFailsAlone(p *probe) {
	s := p.open()
	events := p.events(5)
	const bad = 2
	badID := events[bad].ID
	events[bad] = p.d.Rejected(badID)

	for i, err := range s.deliver(events...) {
		switch {
		case i == bad && err == nil:
			p.Errorf("the event that the destination refuses was delivered")
		case i == bad && verdict(delivery.Proven(err)) != "permanent":
			p.Errorf("the event that the destination refuses is %s, want permanent: %v", verdict(err), err)
		case i != bad && err != nil:
			p.Errorf("a neighbour of the bad event is %s: %v", verdict(err), err)
		}
	}

	if p.Failed() {
		return
	}
	p.awaitOnce(slices.DeleteFunc(idsOf(events), func(id int64) bool { return id == badID }))

	if p.d.Received != nil && p.hasArrived(badID) {
		p.Errorf("the event that failed for good has arrived")
	}
}

// checkManyAtOnce is for the race detector too.
func checkManyAtOnce(p *probe) {
	const callers, rounds = 8, 5
	s := p.open()
	var all []int64

	for range rounds {
		var running []*call
		for range callers {
			events := p.events(batchSize / 4)
			all = append(all, idsOf(events)...)
			running = append(running, s.start(p.ctx(), events...))
		}

		for _, dl := range running {
			for i, err := range dl.answers() {
				if err != nil {
					p.Fatalf("event %d of %d deliveries at once: %s: %v", dl.events[i].ID, callers, verdict(err), err)
				}
			}
		}
	}

	p.awaitOnce(all)
}

// checkDoneContext: an answer is true, or the error gives the reason for
// its absence.
func checkDoneContext(p *probe) {
	s := p.warm()
	cause := errors.New("handlertest: the context was done before")
	ctx, cancel := context.WithCancelCause(p.Context())
	cancel(cause)
	e := p.events(1)
	if err := s.start(ctx, e...).answers()[0]; err != nil {
		p.wantEnded(err, cause)
	} else {
		p.await(idsOf(e))
	}
	s.mustDeliver(p.events(1)...)
}
