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
	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// Entry holds the facts about an entry of a request that batching needs.
type Entry struct {
	// Size is in bytes, as the service counts.
	Size int
	// Line is the group or key whose order is kept as far as the service allows: entries behind
	// a failed one wait. "" means no group.
	Line string
}

// Sender delivers the events of a destination, as entries of type T.
type Sender[T any] struct {
	Conn *Conn
	// MaxEntries and MaxBytes bound a request. An entry that is larger is sent alone.
	MaxEntries, MaxBytes int
	// Encode makes the entry for an event. Its errors are about the event, and
	// permanent.
	Encode func(e *delivery.Event) (T, Entry, error)
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
		maxEntries: s.MaxEntries, maxBytes: s.MaxBytes,
		entries: make([]Entry, len(events)), errs: make([]error, len(events)), blocked: make(map[string]error),
	}
	for i, e := range events {
		var err error
		if entries[i], b.entries[i], err = s.Encode(e); err != nil {
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
		if request, err = s.Begin(ctx); err != nil {
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
					events[i].Acknowledged(func() delivery.Ack { return delivery.Ack{Partition: *answers[n].Shard, Offset: -1} })
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
	b.run(ctx)
	return b.errs
}

// batch is a call of Deliver: its entries and errors have an element for each event.
type batch struct {
	maxEntries, maxBytes int
	entries              []Entry
	errs                 []error
	// send sends the entries with the given indexes in one request, and records the answers
	// in errs. It returns the error of Classify, which is for all of them.
	send func(ctx context.Context, chunk []int) error

	blocked map[string]error // why nothing more goes to a line
}

// run sends the entries that have no error yet, in order: as many in each request as
// fit.
func (b *batch) run(ctx context.Context) {
	for next := 0; next < len(b.entries); {
		var chunk []int
		size := 0
		for ; next < len(b.entries) && len(chunk) < b.maxEntries; next++ {
			if b.errs[next] != nil || b.isBlocked(next) {
				continue
			}
			if size += b.entries[next].Size; size > b.maxBytes && len(chunk) > 0 {
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

// isBlocked fails an entry whose line must wait for an earlier one.
func (b *batch) isBlocked(i int) bool {
	line := b.entries[i].Line
	if line == "" {
		return false
	}
	err, blocked := b.blocked[line]
	if blocked {
		b.errs[i] = fmt.Errorf("an earlier event of the same group has failed: %w", err)
	}
	return blocked
}

// block keeps later entries of a line back: an event that will be tried again must not be
// overtaken. A dead one is not waited for.
func (b *batch) block(i int) {
	if err := b.errs[i]; err != nil && !delivery.IsPermanent(err) {
		b.blocked[b.entries[i].Line] = err
	}
}

// request sends one request, and smaller ones where an entry may have spoilt it. It returns an
// error if nothing more can be sent now; then each entry of the chunk has its error.
func (b *batch) request(ctx context.Context, chunk []int) error {
	err := b.send(ctx, chunk)
	switch {
	case err == nil:
		for _, i := range chunk {
			b.block(i)
		}
		return nil
	case !outcome.IsRefusal(err):
		for _, i := range chunk {
			b.errs[i] = err
		}
		return err
	case len(chunk) == 1:
		b.errs[chunk[0]] = outcome.Alone(err)
		b.block(chunk[0])
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
	var rest []int
	for _, i := range chunk[mid:] {
		if !b.isBlocked(i) {
			rest = append(rest, i)
		}
	}
	if len(rest) == 0 {
		return nil
	}
	return b.request(ctx, rest)
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
			errs[i] = delivery.Unavailable(fmt.Errorf("%s: the answer names neither success nor failure of this event: maybe sent", c.svc.Name))
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
		return delivery.Permanent(err)
	case class == outcome.Unknown || slices.Contains(internalCodes(), code):
		if others {
			return err
		}
		return delivery.Unavailable(err)
	default:
		return class.Mark(0, err)
	}
}
