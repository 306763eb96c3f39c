package handlertest

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// Run checks d, one subtest per property. The subtests run one after another,
// because faults affect all of them. Call t.Parallel before it if d is alone
// with its server.
func Run(t *testing.T, d Destination) {
	t.Helper()
	run(t, d, func(name string, f func(tb testing.TB)) bool {
		return t.Run(name, func(t *testing.T) { f(t) })
	})
}

// subtest runs f as a subtest and reports whether it passed.
type subtest func(name string, f func(tb testing.TB)) bool

// property is a property of every destination.
type property struct {
	name  string
	needs need
	check func(p *probe)
}

// need is the means that a property needs.
type need uint16

const (
	received need = 1 << iota
	message
	network
	outage  // a network or a server that can be stopped
	restart // a server that can be stopped
	rejected
	secrets
	classes
)

// missing returns the parts of n that d lacks, or "".
func (n need) missing(d *Destination) string {
	stops := d.Stop != nil

	switch {
	case n&received != 0 && d.Received == nil:
		return "Received: the arrivals are unknown"
	case n&message != 0 && d.Message == nil:
		return "Message: what arrives is unknown"
	case n&network != 0 && d.Network == nil:
		return "Network: the network between the handler and its server cannot fail"
	case n&outage != 0 && d.Network == nil && !stops:
		return "Network, or Stop and Start: an outage is impossible"
	case n&restart != 0 && !stops:
		return "Stop and Start: the server cannot be restarted"
	case n&rejected != 0 && d.Rejected == nil:
		return "Rejected: the destination refuses no event"
	case n&secrets != 0 && len(d.Secrets) == 0:
		return "Secrets: there are no secrets to look for"
	case n&classes != 0 && len(d.Cases) == 0:
		return "Cases: the classes of its errors are unknown"
	default:
		return ""
	}
}

// The names of the properties are here so that the suite's own tests can say
// which of them a broken handler must fail.
const (
	oneArrives      = "one event arrives"
	leftAsItWas     = "an event is left as it was"
	noDataAnswers   = "an event without data is answered"
	bytesArrive     = "bytes arrive as they are"
	batchAnswers    = "a batch is answered event by event"
	badFailsAlone   = "a bad event fails alone"
	manyAtOnce      = "many at once"
	doneContext     = "a context that is done"
	answerAwaited   = "the answer is waited for"
	lateAnswer      = "a late answer counts"
	cancelEnds      = "cancelling ends a delivery"
	deadlineEnds    = "a deadline ends a delivery"
	nobodyListens   = "no server listens"
	cutBeforeAnswer = "the connection is cut before the answer"
	outageInStream  = "the network fails in the middle of a stream"
	restartInStream = "the server restarts in the middle of a stream"
	closeSilent     = "closing does not wait for a silent server"
	closeAgain      = "closing again does nothing"
	closeUnderway   = "closing while deliveries run"
	deliverAfter    = "delivering after closing fails"
	goroutinesEnd   = "goroutines end"
	secretsUntold   = "secrets stay hidden"
	casePrefix      = "case: "
	noCases         = "cases"
)

func properties() []property {
	return []property{
		{leftAsItWas, 0, checkLeftAsItWas},
		{bytesArrive, received | message, checkBytes},
		{noDataAnswers, 0, checkNoData},
		{batchAnswers, 0, checkBatch},
		{badFailsAlone, rejected, checkBadFailsAlone},
		{manyAtOnce, 0, checkManyAtOnce},
		{doneContext, 0, checkDoneContext},
		{answerAwaited, network | received, checkAnswerAwaited},
		{lateAnswer, network | received, checkLateAnswer},
		{cancelEnds, network | received, checkCancelEnds},
		{deadlineEnds, network, checkDeadlineEnds},
		{nobodyListens, outage, checkNobodyListens},
		{cutBeforeAnswer, network | received, checkCutBeforeAnswer},
		{outageInStream, network | received, checkOutageInStream},
		{restartInStream, restart | received, checkRestartInStream},
		{closeSilent, network, checkCloseSilent},
		{closeAgain, 0, checkCloseAgain},
		{closeUnderway, 0, checkCloseUnderway},
		{deliverAfter, 0, checkDeliverAfter},
		{goroutinesEnd, 0, checkGoroutinesEnd},
	}
}

// run is [Run] with another way to run subtests.
func run(tb testing.TB, d Destination, sub subtest) {
	tb.Helper()
	switch {
	case d.Open == nil:
		tb.Fatal("handlertest: the Destination has no Open")
	case (d.Stop == nil) != (d.Start == nil):
		tb.Fatal("handlertest: Stop and Start go together: set both or none")
	}

	d = d.withDefaults()
	if d.Patience <= 2*d.Prompt {
		tb.Fatalf("handlertest: Patience is %v and Prompt %v: Patience must be more than twice Prompt", d.Patience, d.Prompt)
	}

	s := newSuite(d)
	if !sub(oneArrives, s.subtest(property{oneArrives, 0, checkOneArrives})) {
		tb.Logf("handlertest: the other properties need this one: %s", oneArrives)
		return
	}

	for _, prop := range properties() {
		sub(prop.name, s.subtest(prop))
	}
	for _, c := range s.d.Cases {
		sub(casePrefix+c.Name, s.subtest(property{c.Name, 0, func(p *probe) { checkCase(p, c) }}))
	}

	if len(s.d.Cases) == 0 {
		sub(noCases, s.subtest(property{noCases, classes, nil}))
	}

	// The last one: it looks at the errors of all others.
	sub(secretsUntold, s.subtest(property{secretsUntold, secrets, checkSecrets}))
}

// suite is shared by the properties of one destination.
type suite struct {
	d    Destination
	last atomic.Int64 // the id used last

	mu   sync.Mutex
	errs []error // every error seen
}

func newSuite(d Destination) *suite {
	s := &suite{d: d}
	// A place may remember the events of an earlier run. Microseconds stay
	// below 2^53, so that JavaScript and jq can read them too.
	s.last.Store(time.Now().UnixMicro())
	return s
}

// subtest returns prop as a test.
func (s *suite) subtest(prop property) func(tb testing.TB) {
	return func(tb testing.TB) {
		tb.Helper()
		if what := prop.needs.missing(&s.d); what != "" {
			tb.Skip("the Destination has no " + what)
		}
		p := newProbe(tb, s)
		tb.Cleanup(p.finish)
		prop.check(p)
	}
}

// note keeps an error for the property that checks all of them.
func (s *suite) note(err error) {
	if err == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errs = append(s.errs, err)
}

// events makes the next n events.
func (s *suite) events(n int) []*delivery.Event {
	all := make([]*delivery.Event, n)
	for i := range all {
		all[i] = s.d.Event(s.last.Add(1))
	}
	return all
}

func idsOf(events []*delivery.Event) []int64 {
	ids := make([]int64, len(events))
	for i, e := range events {
		ids[i] = e.ID
	}
	return ids
}
