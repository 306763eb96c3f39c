package file

import (
	"context"
	"slices"

	"github.com/notifyd/notifyd/delivery"
)

// batch is one call of DeliverBatch, which has the turn.
type batch struct {
	h      *Handler
	events []*delivery.Event
	lines  []line
	errs   []error // by event
}

// run writes the lines of the events that have not failed, in parts of at most maxOpen files. After a failure that is not
// one event's nothing more is written, so that nothing overtakes.
func (b *batch) run(ctx context.Context) {
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
				if len(files) == maxOpen {
					break
				}
				order = append(order, path)
			}
			files[path] = append(files[path], next)
		}
		if !b.part(ctx, from, next, files, order) {
			return
		}
		from = next
	}
}

// part writes and synchronizes the files of the events from one to before another, and reports whether the batch may go on.
// After a failure that is not one event's, all events from the first of the file that failed are failed; those before it are written.
func (b *batch) part(ctx context.Context, from, to int, files map[string][]int, order []string) bool {
	b.h.shrink(len(order))
	limit := to // no event from here on is acknowledged
	var why error
	fail := func(path string, err error) {
		if err = b.h.failed(err); !delivery.IsPermanent(err) {
			if first := files[path][0]; first < limit {
				limit, why = first, err
			}
			return
		}
		for _, i := range files[path] {
			b.errs[i] = err
		}
		files[path] = nil
	}
	// All relays lock in the same order, so that none waits for one that waits for it.
	for _, path := range slices.Sorted(slices.Values(order)) {
		switch a, err := b.h.acquire(ctx, path); {
		case err == nil:
			defer a.unlock()
		case ctx.Err() != nil:
			b.failFrom(from, b.h.out.Ended(ctx, "waiting for the lock of a file"))
			return false
		default:
			fail(path, err)
		}
	}
	for _, path := range order {
		var data []byte
		for _, i := range files[path] {
			if i < limit {
				data = append(data, b.lines[i].text...)
			}
		}
		if len(data) == 0 {
			continue
		}
		if err := b.h.files[path].append(data); err != nil {
			b.h.forget(path) // the next batch looks at what is in it
			fail(path, err)
		}
	}
	if why != nil {
		b.failFrom(limit, why)
	}
	return why == nil
}

func (b *batch) failFrom(first int, err error) {
	for i := first; i < len(b.errs); i++ {
		if b.errs[i] == nil {
			b.errs[i] = err
		}
	}
}
