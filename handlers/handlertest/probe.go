package handlertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// tick is the interval of polling where no signal exists.
const tick = 5 * time.Millisecond

// maxListed is how many ids a message lists.
const maxListed = 20

// errPatience is the cause of contexts that must not end before their test.
var errPatience = errors.New("handlertest: Patience is over")

// probe is one property being checked. Only the test's own goroutine uses it.
type probe struct {
	testing.TB
	*suite
	subjects   []*subject
	deliveries []*call
}

func newProbe(tb testing.TB, s *suite) *probe {
	tb.Helper()
	return &probe{TB: tb, suite: s}
}

// ctx is for deliveries that have all the time they need.
func (p *probe) ctx() context.Context {
	ctx, cancel := context.WithTimeoutCause(p.Context(), p.d.Patience, errPatience)
	p.Cleanup(cancel)
	return ctx
}

// within waits until ok and reports whether ok came true. It counts ticks and not
// time, so that a pause of the machine does not count.
func (*probe) within(limit time.Duration, ok func() bool) bool {
	t := time.NewTicker(tick)
	defer t.Stop()
	for range max(limit/tick, 1) {
		if ok() {
			return true
		}
		<-t.C
	}
	return ok()
}

// until waits for ok, and fails the test without it.
func (p *probe) until(what string, ok func() bool) {
	p.Helper()
	if !p.within(p.d.Patience, ok) {
		p.Fatalf("%s: not within %v", what, p.d.Patience)
	}
}

// heal ends the faults of the network, if there is one.
func (p *probe) heal() {
	if p.d.Network != nil {
		p.d.Network.Heal()
	}
}

// finish restores the destination: no faults, no delivery under way, no handler open.
func (p *probe) finish() {
	p.Helper()
	p.heal()

	for _, dl := range p.deliveries {
		if !p.within(p.d.Patience, dl.isDone) {
			p.Errorf("a delivery goes on though its context is done and no fault is left")
			return
		}
	}

	for _, s := range p.subjects {
		if s.closed {
			continue
		}
		if err := s.close(); err != nil {
			p.Errorf("Close: %v", err)
		}
	}
}

// subject is a handler under test.
type subject struct {
	p      *probe
	h      delivery.Handler
	batch  delivery.BatchHandler // nil if it takes one event at a time
	closer io.Closer             // nil if it need not be closed
	closed bool
}

// open makes a handler.
func (p *probe) open() *subject {
	p.Helper()
	s := &subject{p: p, h: p.d.Open(p)}
	if s.h == nil {
		p.Fatal("Open returned nil")
	}
	s.batch, _ = s.h.(delivery.BatchHandler)
	s.closer, _ = s.h.(io.Closer)
	p.subjects = append(p.subjects, s)
	return s
}

// warm makes a handler that has delivered, and so has its connections.
func (p *probe) warm() *subject {
	p.Helper()
	s := p.open()
	s.mustDeliver(p.events(1)...)
	return s
}

// goes runs f and reports its end.
type goes struct {
	done     chan struct{}
	panicked string
}

func start(f func()) *goes {
	g := &goes{done: make(chan struct{})}
	go func() {
		defer close(g.done)
		defer func() {
			if r := recover(); r != nil {
				g.panicked = fmt.Sprintf("%v\n%s", r, debug.Stack())
			}
		}()
		f()
	}()
	return g
}

func (g *goes) isDone() bool {
	select {
	case <-g.done:
		return true
	default:
		return false
	}
}

// call is one of Deliver or DeliverBatch.
type call struct {
	*goes
	p      *probe
	events []*delivery.Event
	errs   []error // one per event; valid when done
	bug    string
}

// start begins to deliver events: as one batch if the handler takes batches, and
// one after another if not.
func (s *subject) start(ctx context.Context, events ...*delivery.Event) *call {
	dl := &call{p: s.p, events: events, errs: make([]error, len(events))}
	dl.goes = start(func() { s.call(ctx, dl) })
	s.p.deliveries = append(s.p.deliveries, dl)
	return dl
}

// call delivers and fills in the answers.
func (s *subject) call(ctx context.Context, dl *call) {
	if s.batch == nil || len(dl.events) == 1 {
		for i, e := range dl.events {
			dl.errs[i] = s.h.Deliver(ctx, e)
		}
		return
	}
	errs := s.batch.DeliverBatch(ctx, dl.events)
	if len(errs) != 0 && len(errs) != len(dl.events) {
		dl.bug = fmt.Sprintf("DeliverBatch gave %d answers for %d events", len(errs), len(dl.events))
		return
	}
	copy(dl.errs, errs)
}

// startEach begins a separate delivery for each event.
func (s *subject) startEach(ctx context.Context, events ...*delivery.Event) []*call {
	all := make([]*call, len(events))
	for i, e := range events {
		all[i] = s.start(ctx, e)
	}
	return all
}

// answers waits until the delivery has returned and gives the answer for each
// event. It ends the test if the handler broke its contract.
func (dl *call) answers() []error {
	dl.p.Helper()
	dl.p.until("Deliver returns", dl.isDone)
	return dl.given()
}

// given is answers for a delivery that is done.
func (dl *call) given() []error {
	dl.p.Helper()
	if dl.panicked != "" {
		dl.p.Fatalf("the handler panics: %s", dl.panicked)
	}
	if dl.bug != "" {
		dl.p.Fatal(dl.bug)
	}
	for _, err := range dl.errs {
		dl.p.note(err)
	}
	return dl.errs
}

// deliver is start and answers, without a deadline.
func (s *subject) deliver(events ...*delivery.Event) []error {
	s.p.Helper()
	return s.start(s.p.ctx(), events...).answers()
}

// mustDeliver delivers events without a fault.
func (s *subject) mustDeliver(events ...*delivery.Event) {
	s.p.Helper()
	for _, err := range s.deliver(events...) {
		if err != nil {
			s.p.Fatalf("an event is not delivered though there is no fault: %s: %v", verdict(err), err)
		}
	}
}

// close closes the handler, which may be closed already.
func (s *subject) close() error {
	s.p.Helper()
	s.closed = true
	if s.closer == nil {
		return nil
	}
	return s.startClose().result(s.p)
}

type closing struct {
	*goes
	err error
}

func (s *subject) startClose() *closing {
	s.closed = true
	c := &closing{}
	c.goes = start(func() { c.err = s.closer.Close() })
	return c
}

// result waits for the end of Close.
func (c *closing) result(p *probe) error {
	p.Helper()
	p.until("Close returns", c.isDone)
	if c.panicked != "" {
		p.Fatalf("Close panics: %s", c.panicked)
	}
	p.note(c.err)
	return c.err
}

// needCloser skips the test of a handler that holds nothing.
func (s *subject) needCloser() {
	s.p.Helper()
	if s.closer == nil {
		s.p.Skip("the handler is not an io.Closer: there is nothing to close")
	}
}

// mutedDelivery begins a delivery whose answer is held back, and returns when
// the event has arrived, so that nothing but the answer is missing.
func (s *subject) mutedDelivery(ctx context.Context, events ...*delivery.Event) *call {
	p := s.p
	p.Helper()
	p.d.Network.Mute()
	dl := s.start(ctx, events...)
	ids := idsOf(events)
	if !p.within(p.d.Prompt, func() bool { return dl.isDone() || p.hasArrived(ids...) }) {
		// The handler sends another request first: then the answer to that one is
		// missing.
		p.Logf("the event does not arrive while answers are held back: this is about an earlier answer")
	}
	return dl
}

// arrivals returns which of ids have arrived, in the order of arrival and as
// often as they have.
func (p *probe) arrivals(ids []int64) []int64 {
	p.Helper()
	ours := make(map[int64]bool, len(ids))
	for _, id := range ids {
		ours[id] = true
	}
	return slices.DeleteFunc(slices.Clone(p.d.Received(p)), func(id int64) bool { return !ours[id] })
}

// hasArrived reports whether all of ids are there.
func (p *probe) hasArrived(ids ...int64) bool {
	p.Helper()
	there := make(map[int64]bool, len(ids))
	for _, id := range p.arrivals(ids) {
		there[id] = true
	}
	return len(there) == len(ids)
}

// await waits until all of ids have arrived and returns their arrivals. It
// returns nil at once if the place cannot be asked.
func (p *probe) await(ids []int64) []int64 {
	p.Helper()
	if p.d.Received == nil {
		return nil
	}
	if !p.within(p.d.Patience, func() bool { return p.hasArrived(ids...) }) {
		there := countOf(p.arrivals(ids))
		missing := slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return there[id] > 0 })
		p.Fatalf("%d of %d events that were delivered have not arrived within %v: %v",
			len(missing), len(ids), p.d.Patience, missing[:min(len(missing), maxListed)])
	}
	return p.arrivals(ids)
}

// awaitOnce waits until ids have arrived, each of them once.
func (p *probe) awaitOnce(ids []int64) []int64 {
	p.Helper()
	arrived := p.await(ids)
	if arrived != nil && len(arrived) != len(ids) {
		p.Errorf("%d events were delivered without any fault, and came as %d: %v", len(ids), len(arrived), repeated(arrived))
	}
	return arrived
}

// repeated returns the ids that are there more than once, with how often.
func repeated(ids []int64) map[int64]int {
	count := countOf(ids)
	for id, n := range count {
		if n == 1 {
			delete(count, id)
		}
	}
	return count
}

func countOf(ids []int64) map[int64]int {
	count := make(map[int64]int, len(ids))
	for _, id := range ids {
		count[id]++
	}
	return count
}
