package wake

import (
	"fmt"
	"testing"
)

// This file checks the protocol of writers and relays, as docs/design/wake.md describes it, in every interleaving of two writers,
// a relay that starts, and one that listens. One relay may lose its session, die, or poll for another reason.

// protocol is a variant of the protocol.
type protocol struct {
	stream bool // each relay needs every event, and waits for relays that poll
	// The mistakes.
	unsettled bool // a relay that has begun to listen reads, and does not settle
	lateLock  bool // a relay settles, and takes the listening lock after that
	oneTest   bool // a writer takes a failed exclusive test for a relay that listens: a cost, and no mistake
}

// The steps of a writer.
const (
	wBegin     = iota // draws its id
	wPolls            // tests k
	wListens          // tests s exclusively
	wRelease          // has s exclusively, so no relay listens
	wShared           // tests s shared
	wNotify           // has s shared: a relay listens
	wNotifies         // commits, and notifies
	wSilent           // commits in silence
	wCommitted        //
)

// The steps of a listening session.
const (
	sConnect  = iota
	sLock     // listens, and takes s
	sRescan   // makes the machine read and settle
	sSettled  // lateLock: waits for the machine
	sLateLock // lateLock: takes s
	sListens
)

// The steps of a machine.
const (
	mSuppress  = iota // may take k
	mPoll             // reads
	mRelease          // releases k
	mDraw             // draws its transaction id
	mSettle           // waits for older writers
	mRead             // reads once more
	mListening        //
)

type modelRelay struct {
	session, machine uint8
	hears            bool  // LISTEN was accepted
	holds            bool  // s, shared
	poked            bool  // the machine must poll
	told             bool  // another relay polls, or has died, which this one will learn
	dead             bool  //
	waits            uint8 // the writers whose end settling waits for
	seen             uint8 // the events that were read, or heard
}

type model struct {
	k         int8  // the relay that holds k, from 1; 0 for none
	exclusive uint8 // the writers that hold s exclusively; one at most
	shared    uint8 // the writers that hold s shared
	writers   [2]uint8
	relays    [2]modelRelay
	incidents uint8 // how many may still happen: a session is lost, a relay dies, a relay polls for another reason
}

func (m *model) listened() bool {
	return m.shared != 0 || m.relays[0].holds || m.relays[1].holds
}

func (m *model) committed() (events uint8) {
	for w, step := range m.writers {
		if step == wCommitted {
			events |= 1 << w
		}
	}
	return events
}

// open returns the writers that have drawn an id and have not ended.
func (m *model) open() (writers uint8) {
	for w, step := range m.writers {
		if step != wBegin && step != wCommitted {
			writers |= 1 << w
		}
	}
	return writers
}

// write takes one step of a writer.
func (p protocol) write(m model, w int) (next model, ok bool) {
	bit := uint8(1) << w
	step := &m.writers[w]
	switch *step {
	case wPolls:
		*step = wListens
		if m.k != 0 {
			*step = wSilent
		}
	case wListens:
		switch {
		case m.exclusive == 0 && !m.listened():
			m.exclusive, *step = bit, wRelease
		case p.oneTest:
			*step = wNotifies
		default:
			*step = wShared
		}
	case wRelease:
		m.exclusive, *step = 0, wSilent
	case wShared:
		if m.exclusive != 0 {
			*step = wSilent
			break
		}
		m.shared, *step = m.shared|bit, wNotify
	case wNotify:
		m.shared, *step = m.shared&^bit, wNotifies
	case wNotifies:
		for i := range m.relays {
			if m.relays[i].hears {
				m.relays[i].seen |= bit
			}
		}
		*step = wCommitted
	case wCommitted:
		return m, false
	default:
		*step++
	}
	return m, true
}

// listen takes one step of a listening session.
func (p protocol) listen(m model, i int) (next model, ok bool) {
	r := &m.relays[i]
	switch r.session {
	case sConnect:
		r.hears, r.session = true, sLock
		if p.lateLock {
			r.session = sRescan
		}
	case sLock, sLateLock:
		if m.exclusive != 0 {
			return m, false
		}
		r.holds = true
		r.session = map[uint8]uint8{sLock: sRescan, sLateLock: sListens}[r.session]
	case sRescan:
		if p.unsettled {
			r.seen |= m.committed()
		} else {
			r.poke()
		}
		r.session = sListens
		if p.lateLock {
			r.session = sSettled
		}
	case sSettled:
		if r.machine != mListening || r.poked {
			return m, false
		}
		r.session = sLateLock
	case sListens:
		return m, false
	}
	return m, true
}

// poke is Machine.Poke.
func (r *modelRelay) poke() {
	if r.machine > mRelease {
		r.poked = true
	}
}

// run takes one step of a machine.
func (p protocol) run(m model, i int) (next model, ok bool) {
	r, self := &m.relays[i], int8(i+1)
	if r.poked && r.machine > mRelease {
		r.poked, r.machine = false, mSuppress
		return m, true
	}
	switch r.machine {
	case mSuppress:
		if m.k == 0 {
			m.k = self
			if other := &m.relays[1-i]; p.stream && other.hears {
				other.told = true // the announcement
			}
		}
	case mPoll:
		r.seen |= m.committed()
	case mRelease:
		if m.k == self {
			m.k = 0
		}
	case mDraw:
		if p.stream && m.k != 0 {
			return m, false
		}
		r.waits = m.open()
	case mSettle:
		if r.waits&m.open() != 0 {
			return m, false
		}
		if p.stream && m.k != 0 {
			r.machine, r.waits = mDraw, 0
			return m, true
		}
		r.waits = 0
	case mRead:
		r.seen |= m.committed()
	case mListening:
		return m, false
	}
	r.machine++
	return m, true
}

// nexts returns the states that follow.
func (p protocol) nexts(m model) (all []model) {
	add := func(next model, ok bool) {
		if ok {
			all = append(all, next)
		}
	}
	for w := range m.writers {
		add(p.write(m, w))
	}
	for i, r := range m.relays {
		if r.dead {
			continue
		}
		add(p.listen(m, i))
		add(p.run(m, i))

		if r.told {
			next := m
			next.relays[i].told = false
			next.relays[i].poke()
			add(next, true)
		}
		if r.machine == mListening && m.incidents > 0 {
			next := m
			next.incidents--
			next.relays[i].machine = mSuppress
			add(next, true)
		}
		if r.session != sConnect && m.incidents > 0 {
			next := m
			next.incidents--
			next.relays[i].session, next.relays[i].hears, next.relays[i].holds = sConnect, false, false
			add(next, true)
		}
		if m.incidents > 0 && !m.relays[1-i].dead {
			next := m
			next.incidents--
			next.relays[i] = modelRelay{dead: true}
			if m.k == int8(i+1) {
				next.k = 0
			}
			next.relays[1-i].told = true // it finds the session gone
			add(next, true)
		}
	}
	return all
}

// lost describes events that no relay will find, in a state in which nothing happens any more.
func (p protocol) lost(m model) string {
	some, each := uint8(0), uint8(3)
	for i, r := range m.relays {
		if r.dead {
			continue
		}
		if r.machine != mListening || r.session != sListens {
			return fmt.Sprintf("relay %d is stuck", i)
		}
		some |= r.seen
		each &= r.seen
	}
	if some != 3 || p.stream && each != 3 {
		return "an event is unheard"
	}
	return ""
}

// explore visits every state, and returns the first one in which an event is lost.
func (p protocol) explore() (found string, states int) {
	start := model{incidents: 1}
	start.relays[0].machine = mRelease // a relay starts, next to one that listens
	start.relays[1] = modelRelay{session: sListens, hears: true, holds: true, machine: mListening}
	seen := map[model]bool{start: true}
	for open := []model{start}; len(open) > 0; {
		m := open[len(open)-1]
		open = open[:len(open)-1]
		all := p.nexts(m)
		// A step that is only possible, such as a loss, may never come.
		calm := m
		calm.incidents, calm.incidents = 0, 0
		if len(p.nexts(calm)) == 0 {
			if why := p.lost(m); why != "" {
				return fmt.Sprintf("%s: %+v", why, m), len(seen)
			}
		}
		for _, next := range all {
			if !seen[next] {
				seen[next] = true
				open = append(open, next)
			}
		}
	}
	return "", len(seen)
}

// TestProtocol: in no interleaving an event stays unheard, and the mistakes that the order of the steps prevents are found.
func TestProtocol(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		protocol
		loses bool
	}{
		"queue":                          {protocol{}, false},
		"stream":                         {protocol{stream: true}, false},
		"one test":                       {protocol{oneTest: true}, false},
		"queue, not settled":             {protocol{unsettled: true}, true},
		"stream, not settled":            {protocol{stream: true, unsettled: true}, true},
		"queue, settled before the lock": {protocol{lateLock: true}, true},
		"stream, settled before it":      {protocol{stream: true, lateLock: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found, states := c.explore()
			if (found != "") != c.loses {
				t.Errorf("in %d states: %q", states, found)
			}
		})
	}
}
