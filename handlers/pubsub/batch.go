package pubsub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// maxRequests is how many requests of a batch run at once, each on a connection. With
// answers after some 20 ms that is 800 keys per second.
const maxRequests = 16

// batch is a call of DeliverBatch. One goroutine per group writes only the errs
// of its messages.
type batch struct {
	h       *Handler
	entries []*entry
	errs    []error

	mu   sync.Mutex
	stop error // why nothing more is sent, nil while it is
}

// send sends the entries that have no error yet. All messages of a request must have the
// same ordering key, so each key is a group with separate requests. In a total order there
// is one group, and a request ends where the key changes.
func (b *batch) send(ctx context.Context) {
	groups := make(map[string][]int)
	var keys []string // in the order of the events
	for i, e := range b.entries {
		if b.errs[i] != nil {
			continue
		}

		key := e.Key
		if delivery.CallOf(ctx).TotalOrder {
			key = ""
		}

		if groups[key] == nil {
			keys = append(keys, key)
		}
		groups[key] = append(groups[key], i)
	}

	if len(keys) == 1 { // most batches
		b.group(ctx, groups[keys[0]])
		return
	}

	var running sync.WaitGroup
	defer running.Wait()
	next := make(chan []int)
	defer close(next)

	for range min(maxRequests, len(keys)) {
		running.Go(func() {
			for group := range next {
				b.group(ctx, group)
			}
		})
	}

	for _, key := range keys {
		next <- groups[key]
	}
}

// group sends the messages of a group in order. Where the group keeps an order, nothing more of
// it is sent after a message that will be tried again; a dead message is not waited for.
func (b *batch) group(ctx context.Context, all []int) {
	ordered := b.isOrdered(ctx, b.entries[all[0]].Key)
	for len(all) > 0 {
		n := b.fitting(all)
		if err := b.request(ctx, all[:n], ordered); err != nil {
			b.fail(all[n:], err)
			return
		}
		all = all[n:]
	}
}

// isOrdered reports whether the events of a group have an order: they are of one aggregate, or of a total order.
func (b *batch) isOrdered(ctx context.Context, key string) bool {
	if delivery.CallOf(ctx).TotalOrder {
		return true
	}
	isAggregate := key != "" && b.h.KeepsOrder()
	return isAggregate && !delivery.CallOf(ctx).Unordered
}

// fitting returns how many of the messages go into one request.
func (b *batch) fitting(all []int) int {
	size := 0
	for n, i := range all {
		e := b.entries[i]
		size += e.size
		isFull := n == maxMessages || size > maxBytes
		isOther := e.Key != b.entries[all[0]].Key
		if n > 0 && (isFull || isOther) {
			return n
		}
	}
	return len(all)
}

// fail gives err to messages that are not sent because of it.
func (b *batch) fail(rest []int, err error) {
	for _, i := range rest {
		b.errs[i] = fmt.Errorf("an earlier message has failed: %w", err)
	}
}

// request sends one request, and records the answer for its messages. It returns an error
// if messages after them must not be sent.
func (b *batch) request(ctx context.Context, chunk []int, ordered bool) error {
	if err := b.stopped(); err != nil {
		b.fail(chunk, err)
		return err
	}

	err := b.publish(ctx, chunk)
	switch {
	case err == nil:
		return nil
	case !outcome.IsRefusal(err): // also for the other groups
		b.halt(err)
		for _, i := range chunk {
			b.errs[i] = err
		}
		return err
	case len(chunk) == 1:
		err = outcome.Alone(err)
		b.errs[chunk[0]] = err
		if !ordered || delivery.IsPermanent(err) {
			return nil
		}
		return err
	}

	// One of them is at fault, and none was taken: the others must not fail with it.
	for n := range chunk {
		if err := b.request(ctx, chunk[n:n+1], ordered); err != nil {
			b.fail(chunk[n+1:], err)
			return err
		}
	}

	return nil
}

func (b *batch) stopped() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stop
}

func (b *batch) halt(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stop == nil {
		b.stop = err
	}
}

// errUnanswered is for an answer that does not contain the results of the
// messages.
var errUnanswered = errors.New("pubsub: the answer has not an id for each message, maybe sent: is the server Pub/Sub? " +
	"(check endpoint, and proxies)")

func (b *batch) publish(ctx context.Context, chunk []int) error {
	var in struct {
		Messages []*entry `json:"messages"`
	}
	for _, i := range chunk {
		in.Messages = append(in.Messages, b.entries[i])
	}

	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("pubsub: %w", err)
	}

	answer, err := b.h.call(ctx, http.MethodPost, ":publish", body)
	if err != nil {
		return err
	}

	var out struct {
		MessageIDs []string `json:"messageIds"`
	}
	if json.Unmarshal(answer, &out) != nil || len(out.MessageIDs) != len(chunk) {
		return delivery.Unavailable(errUnanswered)
	}

	return nil
}
