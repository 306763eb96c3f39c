package file

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
	"github.com/notifyd/notifyd/internal/exhaust"
)

// batch is one call of DeliverBatch, which has the turn.
type batch struct {
	h      *Handler
	events []*delivery.Event
	lines  []line
	errs   []error // by event

	patience time.Duration // how long the batch may still wait for locks
}

// run writes the lines of the events that have not failed, in parts of at most maxOpen files, or of fewer if the process may
// not open so many. It stops at the failure of a file, so that no event overtakes another.
func (b *batch) run(ctx context.Context) {
	most := maxOpen
	for from := 0; from < len(b.events); {
		files := make(map[string][]int) // the events of each
		var order []string              // of the first event of each
		next := from
		for ; next < len(b.events); next++ {
			path := b.lines[next].path
			if b.errs[next] != nil {
				continue
			}
			if files[path] == nil {
				if len(files) == most {
					break
				}
				order = append(order, path)
			}
			files[path] = append(files[path], next)
		}

		goesOn, tooMany := b.part(ctx, from, next, files, order)
		switch {
		case tooMany:
			b.h.files.shrink(maxOpen)
			most = max(1, len(order)/2)
		case !goesOn:
			return
		default:
			from = next
		}
	}
}

// part writes and synchronizes the files of the events in [from, to). goesOn reports whether the batch continues.
// tooMany reports that the process cannot open so many files; nothing is written in this case. A failure of a file fails
// all events from the first event of this file on. If the path of some events is at fault, part fails only these events
// and the events that must not overtake them. If two paths lead to the same file, their events are written together, in
// order.
func (b *batch) part(ctx context.Context, from, to int, files map[string][]int, order []string) (goesOn, tooMany bool) {
	b.h.files.shrink(len(order))

	limit := to // this event and later ones are not acknowledged
	var why error
	fail := func(path string, err error) {
		err = b.h.failed(err)
		if delivery.IsUnavailable(err) {
			if first := files[path][0]; first < limit {
				limit = first
				why = err
			}
			return
		}

		for _, i := range files[path] {
			b.errs[i] = err
		}
		files[path] = nil
		if !delivery.CallOf(ctx).Unordered {
			b.failBehind(delivery.CallOf(ctx).TotalOrder)
		}
	}

	// All relays lock in the same order, which excludes deadlocks. If one lock is not obtained in time, all others are
	// released: relays that wait for them must not wait for that lock, too.
	open := make(map[string]*appender)
	paths := make(map[*appender]string)
	for _, path := range slices.Sorted(slices.Values(order)) {
		switch a, err := b.h.files.acquire(ctx, path, &b.patience); {
		case err == nil:
			defer a.unlock()
			if first, ok := paths[a]; ok {
				files[first] = slices.Sorted(slices.Values(append(files[first], files[path]...)))
				delete(files, path)
				continue
			}
			paths[a] = path
			open[path] = a
		case errors.Is(err, errLocked):
			b.failFrom(from, b.h.failed(err))
			return false, false
		case errors.Is(ctx.Err(), context.Canceled):
			b.failFrom(from, b.h.out.Ended(ctx, "waiting for the lock of a file"))
			return false, false
		case exhaust.Cause(err) != nil && (len(order) > 1 || len(b.h.files.open) > 1):
			return true, true // fewer files may be possible
		default:
			fail(path, err)
		}
	}

	for _, path := range order {
		var data []byte
		for _, i := range files[path] {
			if i < limit && b.errs[i] == nil {
				data = append(data, b.lines[i].text...)
			}
		}
		if len(data) == 0 {
			continue
		}
		if err := open[path].append(data); err != nil {
			b.h.files.drop(open[path]) // the next batch repairs its end
			fail(path, err)
		}
	}

	if why != nil {
		b.failFrom(limit, why)
	}
	return why == nil, false
}

// failBehind fails the events that follow one of their aggregate that will be tried again, and counts no attempt for them. If
// total, all are of one aggregate.
func (b *batch) failBehind(total bool) {
	type aggregate struct{ kind, id string }
	open := make(map[aggregate]bool)
	behind := delivery.Throttled(0, b.h.out.Line(outcome.Failure{Err: errBehind}))

	for i, e := range b.events {
		a := aggregate{e.AggregateType, e.AggregateID}
		if total {
			a = aggregate{id: "all"}
		}

		switch {
		case a.id == "" || delivery.IsPermanent(b.errs[i]):
		case open[a]:
			b.errs[i] = behind
		case b.errs[i] != nil:
			open[a] = true
		}
	}
}

func (b *batch) failFrom(first int, err error) {
	for i := first; i < len(b.errs); i++ {
		if b.errs[i] == nil {
			b.errs[i] = err
		}
	}
}
