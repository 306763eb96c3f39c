package awsapi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/smithy-go"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/httpconn"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// Sender delivers the events of a destination, as entries of type T.
type Sender[T any] struct {
	Conn *Conn
	// MaxEntries and MaxBytes bound a request. An entry that is larger is sent alone.
	MaxEntries, MaxBytes int
	// Encode makes the entry for an event, and returns its size in bytes, as the service counts. Its errors are about the
	// event, and permanent.
	Encode func(e *delivery.Event) (entry T, size int, err error)
	// Send sends one request, and returns the answers for its entries in their order, or the
	// error of the SDK.
	Send func(ctx context.Context, entries []T) ([]Answer, error)
	// Begin, if not nil, is called first in each DeliverBatch, and returns the function
	// that sends its requests, in place of Send. Its error is marked, and for all events.
	Begin func(ctx context.Context) (func(ctx context.Context, entries []T) ([]Answer, error), error)
	// Lost, if not nil, is called when the service has refused a request for a reason that
	// is not of the events.
	Lost func()
}

// Deliver implements DeliverBatch.
func (s *Sender[T]) Deliver(ctx context.Context, events []*delivery.Event) []error {
	if len(events) == 0 {
		return nil
	}

	entries := make([]T, len(events))
	b := &batch{
		maxEntries: s.MaxEntries,
		maxBytes:   s.MaxBytes,
		sizes:      make([]int, len(events)),
		errs:       make([]error, len(events)),
	}

	for i, e := range events {
		var err error
		entries[i], b.sizes[i], err = s.Encode(e)
		if err != nil {
			b.errs[i] = s.Conn.out.Refuse(err)
		}
	}

	if err := s.Conn.Ready(ctx); err != nil {
		b.fail(0, err)
		return b.errs
	}

	request := s.Send
	if s.Begin != nil {
		var err error
		request, err = s.Begin(ctx)
		if err != nil {
			b.fail(0, err)
			return b.errs
		}
	}

	b.send = func(ctx context.Context, chunk []int) error {
		part := make([]T, len(chunk))
		for n, i := range chunk {
			part[n] = entries[i]
		}

		rctx, cancel := s.Conn.Request(ctx)
		defer cancel()

		answers, err := request(rctx, part)
		if err == nil {
			s.Conn.record(b.errs, chunk, answers)
			for n, i := range chunk {
				if b.errs[i] == nil && answers[n].Shard != nil {
					shard := *answers[n].Shard
					events[i].Acknowledged(func() delivery.Ack { return delivery.Ack{Partition: shard, Offset: -1} })
				}
			}
			return nil
		}

		var api smithy.APIError
		isAnswer := errors.As(err, &api)
		err = s.Conn.Classify(ctx, rctx, err)

		if isAnswer && delivery.IsUnavailable(err) && s.Lost != nil {
			s.Lost()
		}
		return err
	}

	ctx = httpconn.ForEvents(ctx, events...)
	b.run(ctx)
	s.Conn.transport.Learn(ctx, b.errs...)
	return b.errs
}

// batch is a call of Deliver: its sizes and errors have an element for each event.
type batch struct {
	maxEntries, maxBytes int

	sizes []int
	errs  []error
	// send sends the entries with the given indexes in one request, and records the answers
	// in errs. It returns the error of Classify, which is for all of them.
	send func(ctx context.Context, chunk []int) error
}

// run sends the entries that have no error yet, in order: as many in each request as
// fit. A refused entry holds no other back: services take entries behind one that they refuse,
// so that only single events of a group have an order.
func (b *batch) run(ctx context.Context) {
	for next := 0; next < len(b.sizes); {
		var chunk []int
		size := 0
		for ; next < len(b.sizes) && len(chunk) < b.maxEntries; next++ {
			if b.errs[next] != nil {
				continue
			}
			size += b.sizes[next]
			if size > b.maxBytes && len(chunk) > 0 {
				break
			}
			chunk = append(chunk, next)
		}

		if len(chunk) == 0 {
			continue
		}

		if err := b.request(ctx, chunk); err != nil {
			// The other entries would fail alike.
			b.fail(next, err)
			return
		}
	}
}

// fail sets err for the entry at index from and all later ones that have no
// error yet.
func (b *batch) fail(from int, err error) {
	for i := from; i < len(b.errs); i++ {
		if b.errs[i] == nil {
			b.errs[i] = err
		}
	}
}

// request sends one request, and smaller ones where an entry may have spoilt it. It returns an
// error if nothing more can be sent now; then each entry of the chunk has its error.
func (b *batch) request(ctx context.Context, chunk []int) error {
	err := b.send(ctx, chunk)
	switch {
	case err == nil:
		return nil
	case !outcome.IsRefusal(err):
		for _, i := range chunk {
			b.errs[i] = err
		}
		return err
	case len(chunk) == 1:
		b.errs[chunk[0]] = outcome.Alone(err)
		return nil
	}

	// One of them is at fault: the others must not fail with it.
	mid := (len(chunk) + 1) / 2
	if err := b.request(ctx, chunk[:mid]); err != nil {
		for _, i := range chunk[mid:] {
			b.errs[i] = err
		}
		return err
	}

	return b.request(ctx, chunk[mid:])
}

// Answer is a service's answer about one entry; the zero value means that the
// answer is missing.
type Answer struct {
	Taken   bool
	Refused *Reason
	// Shard names the shard that has taken the entry, for a service with shards.
	Shard *string
}

// Reason is why a service has not taken an entry. Ours is true if the service blames
// the sender.
type Reason struct {
	Code, Text string
	Ours       bool
}

// Answered notes the answer for the entry with the given id, its number in the request.
func Answered(answers []Answer, id *string, a Answer) {
	if n, err := strconv.Atoi(aws.ToString(id)); err == nil && n >= 0 && n < len(answers) {
		answers[n] = a
	}
}

// record writes the service's answers for the entries of chunk, in their order, into errs.
// An entry without an answer is delivery.Unavailable: it may have been sent.
func (c *Conn) record(errs []error, chunk []int, answers []Answer) {
	taken := false
	for _, a := range answers {
		taken = taken || a.Taken
	}

	for n, i := range chunk {
		switch {
		case n < len(answers) && answers[n].Taken:
			errs[i] = nil
		case n < len(answers) && answers[n].Refused != nil:
			errs[i] = c.entryError(*answers[n].Refused, taken)
		default:
			errs[i] = delivery.Unavailable(fmt.Errorf("%s: the answer names neither success nor failure of this "+
				"event: maybe sent", c.svc.Name))
		}
	}
}

// entryError classifies the failure of one entry. others is true if the place has
// taken other entries of the same request: then the place works.
func (c *Conn) entryError(why Reason, others bool) error {
	class, cure, code := c.svc.lookUp(why.Code)
	err := c.out.Line(outcome.Failure{Text: textOf(why.Code, why.Text), Cure: cure})

	switch {
	case class == outcome.Unknown && why.Ours:
		return outcome.Unclear.Mark(0, err)
	case class == outcome.Unknown || slices.Contains(internalCodes(), code):
		if others {
			return err
		}
		return delivery.Unavailable(err)
	default:
		return class.Mark(0, err)
	}
}
