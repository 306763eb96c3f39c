package handlertest

import (
	"bytes"
	"context"
	"runtime/pprof"
	"strconv"
	"strings"
)

// checkCloseSilent: a relay that stops must not hang because a server does.
func checkCloseSilent(p *probe) {
	s := p.warm()
	s.needCloser()
	p.d.Network.Mute()
	c := s.startClose()
	if !p.within(p.d.Prompt, c.isDone) {
		p.Errorf("nothing is being delivered, and Close has not returned within %v", p.d.Prompt)
	}
	p.heal()
	_ = c.result(p) // it may report a server that does not answer
}

func checkCloseAgain(p *probe) {
	s := p.warm()
	s.needCloser()
	if err := s.close(); err != nil {
		p.Errorf("Close: %v", err)
	}
	_ = s.close() // it may report that it is closed
}

// checkCloseUnderway: deliveries finish or fail, and neither hangs.
func checkCloseUnderway(p *probe) {
	s := p.warm()
	s.needCloser()
	if p.d.Network != nil {
		p.d.Network.Mute() // so that they do run
	}

	running := s.startEach(p.ctx(), p.events(4)...)
	c := s.startClose()

	p.heal()
	if err := c.result(p); err != nil {
		p.Errorf("Close: %v", err)
	}

	var delivered []int64
	for _, dl := range running {
		err := dl.answers()[0]
		p.wantRetriable(err)
		if err == nil {
			delivered = append(delivered, dl.events[0].ID)
		}
	}

	p.await(delivered)
}

func checkDeliverAfter(p *probe) {
	s := p.warm()
	s.needCloser()
	if err := s.close(); err != nil {
		p.Errorf("Close: %v", err)
	}

	errs := s.deliver(p.events(1)...)
	if s.batch != nil {
		errs = append(errs, s.deliver(p.events(3)...)...)
	}

	for _, err := range errs {
		if err == nil {
			p.Error("a closed handler reports a delivery")
		}
		p.wantRetriable(err)
	}
}

// goroutineLabel marks the goroutines that a handler starts. They inherit it.
const goroutineLabel = "handlertest"

// checkGoroutinesEnd looks for goroutines that the handler has started, directly
// or not, and that are left when it is closed. Those of servers, of other
// handlers and of other tests do not count.
func checkGoroutinesEnd(p *probe) {
	label := strconv.FormatInt(p.last.Add(1), 10)
	// The labels are on the goroutine, and not only in the context.
	pprof.Do(p.ctx(), pprof.Labels(goroutineLabel, label), func(context.Context) {
		p.useAndClose() //nolint:contextcheck // the context adds nothing to p's
	})
	var left string
	if !p.within(p.d.Prompt, func() bool { left = labelled(label); return left == "" }) {
		p.Errorf("goroutines of the closed handler:\n%s", left)
	}
}

// useAndClose is the life of a handler, with all its events.
func (p *probe) useAndClose() {
	p.Helper()
	s := p.warm()
	for _, dl := range s.startEach(p.ctx(), p.events(4)...) {
		dl.answers()
	}
	if p.d.Network != nil {
		p.cancelMuted(s)
	}
	if err := s.close(); err != nil {
		p.Errorf("Close: %v", err)
	}
}

// cancelMuted cancels deliveries whose answers do not come, and cuts their
// connections: this is where goroutines are forgotten.
func (p *probe) cancelMuted(s *subject) {
	p.Helper()
	ctx, cancel := context.WithCancel(p.ctx())
	p.d.Network.Mute()
	running := s.startEach(ctx, p.events(2)...)
	cancel()
	p.within(p.d.Prompt, func() bool { return running[0].isDone() && running[1].isDone() })
	p.d.Network.Cut()
	p.heal()
	for _, dl := range running {
		dl.answers()
	}
	p.recovers(s)
}

// labelled returns the stacks of the goroutines with a label.
func labelled(value string) string {
	var all bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&all, 1); err != nil {
		return err.Error() // a bytes.Buffer gives none
	}
	var found []string
	for stack := range strings.SplitSeq(all.String(), "\n\n") {
		if strings.Contains(stack, "# labels: ") && strings.Contains(stack, strconv.Quote(goroutineLabel)+":"+strconv.Quote(value)) {
			found = append(found, stack)
		}
	}
	return strings.Join(found, "\n\n")
}
