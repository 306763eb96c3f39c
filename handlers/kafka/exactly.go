package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// Exactly once: the position of the destination is a record in the transaction of the events, and
// the engine continues from the last committed position. The handler does not interpret
// positions: it writes the engine's bytes, and reads them back.
//
// A client lives from OpenPosition until the first fault that is not about a record. Only
// OpenPosition makes the next client. Its first request ends transactions that an earlier client
// with the same transactional id has left open. The position that is read then shows whether they
// were committed.

// errNotOpened is the failure of a batch that comes before OpenPosition, or after a fault.
var errNotOpened = errors.New("the position was not read since the last fault")

// opened holds the state that one call of OpenPosition leaves to later
// batches.
type opened struct {
	p        *producer
	client   *kgo.Client // the one that p begins with
	progress delivery.Progress
	id       string // the transactional id, and the key of the position

	calling sync.Mutex // held by a batch
}

// session holds the client that was opened last.
type session struct {
	mu     sync.Mutex
	now    *opened // nil before the first one
	closed bool
}

// swap replaces the opened client, and closes the previous one: a batch that still uses that client
// fails. It reports false if the handler is closed.
func (k *session) swap(next *opened) bool {
	k.mu.Lock()
	before := k.now
	k.now = next
	closed := k.closed
	k.mu.Unlock()
	if before != nil {
		before.client.Close()
	}
	return !closed
}

func (k *session) get() *opened {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.now
}

func (k *session) close() {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.swap(nil)
}

// sessions has one for each shard of the destination.
type sessions struct {
	mu     sync.Mutex
	all    map[int]*session
	closed bool
}

// of returns the session of a shard.
func (k *sessions) of(shard int) *session {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.all == nil {
		k.all = make(map[int]*session)
	}
	if k.all[shard] == nil {
		k.all[shard] = &session{closed: k.closed}
	}
	return k.all[shard]
}

func (k *sessions) close() {
	k.mu.Lock()
	k.closed = true
	all := slices.Collect(maps.Values(k.all))
	k.mu.Unlock()
	for _, one := range all {
		one.close()
	}
}

// StoresPosition implements delivery.PositionStore: with exactly_once.
func (h *Handler) StoresPosition() bool { return h.cfg.ExactlyOnce }

// OpenPosition implements delivery.PositionStore. It makes the topic of the positions where it is
// missing. An error is a fault of the cluster, or of the rights there.
func (h *Handler) OpenPosition(ctx context.Context, name string, progress delivery.Progress) (stored []byte, err error) {
	shard := delivery.CallOf(ctx).Shard
	h.sessions.of(shard).swap(nil)

	within, cancel := context.WithTimeoutCause(ctx, h.cfg.DeliveryTimeout, errTimeout)
	defer cancel()

	id := h.cfg.PositionID(name, shard)
	p := newProducer(h.cfg, h.options, id)
	stored, err = p.open(within, id)
	if err != nil {
		p.close()
		if ctx.Err() != nil {
			return nil, h.out.Ended(ctx, "")
		}
		if is[*net.OpError](err) {
			err = p.link.explain(err)
		}
		if within.Err() != nil {
			err = p.link.explain(fmt.Errorf("the position in topic %s was not read within delivery_timeout of %v: %w",
				h.cfg.PositionsTopic, h.cfg.DeliveryTimeout, err))
		}

		class, _ := lookUp(err, false)
		return nil, class.WithoutEvent().Mark(0, h.describe(err))
	}

	if k := h.sessions.of(shard); !k.swap(&opened{p: p, client: p.client, progress: progress, id: id}) {
		k.swap(nil)
		return nil, h.out.Closed()
	}

	return stored, nil
}

// open fences and ends earlier clients with the same id, and returns the position that was committed last.
func (p *producer) open(ctx context.Context, id string) ([]byte, error) {
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	if err := p.ensurePositions(ctx); err != nil {
		return nil, err
	}
	mark, err := p.mark(ctx, id)
	if err != nil {
		return nil, err
	}
	p.known[p.cfg.PositionsTopic] = true
	return p.readPosition(ctx, id, mark)
}

// deliverExactly is DeliverBatch with exactly_once.
func (h *Handler) deliverExactly(ctx context.Context, events []*delivery.Event) []error {
	o := h.sessions.of(delivery.CallOf(ctx).Shard).get()
	// A batch that the lane has given up may still be in there.
	free := o != nil && o.calling.TryLock()
	if free {
		defer o.calling.Unlock()
	}

	if !free || o.p.client == nil {
		return slices.Repeat([]error{fmt.Errorf("kafka: %w: %w", delivery.ErrReopen, errNotOpened)}, len(events))
	}

	within, cancel := context.WithTimeoutCause(ctx, h.cfg.DeliveryTimeout, errTimeout)
	defer cancel()

	b := batch{h: h, p: o.p, ctx: within, events: events, exact: o}
	b.run() //nolint:contextcheck // the batch holds it
	return b.answers(ctx)
}

// commit writes records and the position in a transaction: all of them, or none. After a fault that
// is not about a record, commit drops the client and nothing more is delivered: only the position
// shows whether the transaction was committed.
func (p *producer) commit(b *batch, todo []int) {
	if p.client == nil {
		b.failAll(todo, errNotOpened)
		return
	}

	lose := func(err error) {
		p.close()
		b.failAll(todo, &lostError{err})
	}

	if err := p.client.BeginTransaction(); err != nil {
		lose(err)
		return
	}

	var position error
	p.along = &along{err: &position, record: kgo.Record{
		Topic: p.cfg.PositionsTopic,
		Key:   []byte(b.exact.id),
		Value: b.exact.progress.With(b.pick(todo)),
	}}

	p.send(b, todo)
	fault := position

	for _, i := range todo {
		if err := b.failure(i); err != nil && !b.ofRecord(err) {
			fault = err
		}
	}

	switch {
	case fault != nil:
		lose(fault)
	case b.anyFailed(todo):
		// The transaction is aborted, and the failed records are known: the others are
		// tried again.
		if err := p.end(b.ctx, kgo.TryAbort); err != nil {
			lose(err)
		}
	default:
		if err := p.end(b.ctx, kgo.TryCommit); err != nil {
			lose(err)
			return
		}
		b.exact.progress.Committed()
	}
}

// along is the record of the position, which is sent with the first records of a transaction.
type along struct {
	record kgo.Record
	err    *error // its failure
}

// lostError is the fault for which a client was dropped.
type lostError struct{ error }

func (e *lostError) Unwrap() error { return e.error }

// ofRecord reports whether an error is about the record alone.
func (b *batch) ofRecord(err error) bool {
	if is[*lostError](err) {
		return false
	}
	return isContent(err) || errors.Is(err, errBehind) || b.ownTopic(err)
}

func (b *batch) anyFailed(todo []int) bool {
	return slices.ContainsFunc(todo, func(i int) bool { return b.failure(i) != nil })
}

func (b *batch) pick(todo []int) []*delivery.Event {
	some := make([]*delivery.Event, len(todo))
	for k, i := range todo {
		some[k] = b.events[i]
	}
	return some
}

// aggregate is the key by which the order of events is kept.
type aggregate struct{ kind, id string }

// unit returns the unit of order of an event; without an id it is in none.
func (b *batch) unit(e *delivery.Event) aggregate {
	if delivery.CallOf(b.ctx).TotalOrder {
		return aggregate{id: "all"}
	}
	return aggregate{e.AggregateType, e.AggregateID}
}

// settle delivers records, each exactly once or not at all. All records of a transaction are
// refused together, so records that the cluster refuses for their content are found by halving. A
// record whose topic is missing is known. An event behind one that is to be tried again is not
// delivered.
func (b *batch) settle(todo []int) {
	todo = b.standing(todo)
	if len(todo) == 0 {
		return
	}

	for _, i := range todo {
		b.errs[i] = nil
	}

	if b.p.client != nil {
		if left := b.h.refused.permitted(b.p, b, todo); len(left) < len(todo) {
			b.settle(left)
			return
		}
	}

	b.p.commit(b, todo)
	if b.p.client == nil || !b.anyFailed(todo) {
		return
	}

	isBlind := isBlind(b, todo)
	if isBlind && !b.again {
		b.again = true
		b.p.known = map[string]bool{b.p.cfg.PositionsTopic: true} // the next transaction asks for the rights to all topics
		b.settle(todo)
		return
	}
	if !isBlind {
		b.h.refused.noteFailed(b, todo)
	}

	missing := func(i int) bool {
		err := b.errs[i]
		return err != nil && !isContent(err)
	}
	if !isBlind && slices.ContainsFunc(todo, missing) {
		b.settle(slices.DeleteFunc(slices.Clone(todo), missing))
		return
	}

	if len(todo) == 1 {
		return
	}

	mid := (len(todo) + 1) / 2
	b.settle(todo[:mid])
	if b.p.client == nil {
		b.failAll(todo[mid:], errNotOpened)
		return
	}
	b.settle(todo[mid:])
}

// standing returns the records of todo before which no event of their aggregate has failed that
// will be tried again, and fails the others.
func (b *batch) standing(todo []int) []int {
	if b.errs == nil {
		b.errs = make([]error, len(b.events))
	}

	var broken map[aggregate]bool
	left := make([]int, 0, len(todo))

	next := 0
	for i, e := range b.events {
		of := b.unit(e)
		if next < len(todo) && todo[next] == i {
			next++
			if broken[of] {
				b.fail(i, errBehind)
				continue
			}
			left = append(left, i)
			continue
		}

		err := b.errs[i]
		if err == nil || of.id == "" {
			continue
		}

		if class, _ := lookUp(err, true); class != outcome.Permanent {
			if broken == nil {
				broken = make(map[aggregate]bool)
			}
			broken[of] = true
		}
	}

	return left
}

// verdict marks the failure of an event of a destination that keeps its position.
func (b *batch) verdict(err error) error {
	switch {
	case errors.Is(err, errBehind):
		return b.h.describe(err)
	case b.ofRecord(err):
		return b.h.answer(err, true)
	default:
		return fmt.Errorf("%w: %w", delivery.ErrReopen, b.h.describe(err))
	}
}

var _ delivery.PositionStore = (*Handler)(nil)
