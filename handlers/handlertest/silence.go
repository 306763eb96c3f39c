package handlertest

import (
	"context"
	"errors"
	"time"
)

// Each property here holds back the server's answers, so that the handler cannot know
// the outcome.

// checkAnswerAwaited: nil comes only after the destination has confirmed.
func checkAnswerAwaited(p *probe) {
	s := p.warm()
	ctx, cancel := context.WithCancel(p.ctx())
	defer cancel()

	dl := s.mutedDelivery(ctx, p.events(1)...)
	cancel() // a handler that waits gives up now

	// A handler that ignores its context gets its answer, and is not checked here.
	unheard := p.within(p.d.Prompt, dl.isDone)
	p.heal()

	for _, err := range dl.answers() {
		if err == nil && unheard {
			p.Error("delivered, though the destination had not answered")
		}
	}
}

// checkLateAnswer: slow is not down.
func checkLateAnswer(p *probe) {
	s := p.warm()
	e := p.events(1)
	dl := s.mutedDelivery(p.ctx(), e...)
	p.heal()
	if err := dl.answers()[0]; err != nil {
		p.Errorf("the answer was late and the event is %s: %v", verdict(err), err)
		return
	}
	p.awaitOnce(idsOf(e))
}

// checkCancelEnds cancels a delivery whose answer does not come.
func checkCancelEnds(p *probe) {
	s := p.warm()
	cause := errors.New("handlertest: cancelled")
	ctx, cancel := context.WithCancelCause(p.ctx())
	dl := s.mutedDelivery(ctx, p.events(batchOf(s))...)
	cancel(cause)
	p.checkEnded(s, dl, cause)
}

// deadlineAfter is long enough for a delivery to get under way.
const deadlineAfter = 200 * time.Millisecond

// checkDeadlineEnds lets a delivery run into its deadline, once while it waits
// for the answer, and once while it connects.
func checkDeadlineEnds(p *probe) {
	cause := errors.New("handlertest: the deadline is over")
	for _, open := range []func() *subject{p.warm, p.open} {
		s := open()
		ctx, cancel := context.WithTimeoutCause(p.ctx(), deadlineAfter, cause)
		p.d.Network.Mute()
		dl := s.start(ctx, p.events(batchOf(s))...)
		<-ctx.Done()
		p.checkEnded(s, dl, cause)
		cancel()
	}
}

// batchOf returns how many events a delivery of s takes at once.
func batchOf(s *subject) int {
	if s.batch == nil {
		return 1
	}
	return 5
}

// checkEnded checks a delivery whose context is done, and that the handler is
// as good as before.
func (p *probe) checkEnded(s *subject, dl *call, cause error) {
	p.Helper()
	if !p.within(p.d.Prompt, dl.isDone) {
		p.Fatalf("the context is done, and Deliver has not returned within %v", p.d.Prompt)
	}
	for _, err := range dl.given() {
		p.wantEnded(err, cause)
	}
	p.heal()
	p.recovers(s)
}

// recovers wants s to deliver again, without being opened again. A handler may need a
// few tries to get its connection back.
func (p *probe) recovers(s *subject) {
	p.Helper()
	e := p.events(1)
	var err error
	p.until("the handler delivers again", func() bool {
		err = s.deliver(e...)[0]
		p.wantRetriable(err)
		return err == nil || p.Failed()
	})
	p.await(idsOf(e))
}
