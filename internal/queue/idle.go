package queue

import "sync"

// idle are the claimers that wait for something to claim. Who came last goes first: the
// server's process of its session has everything at hand, where one that was not used for a few
// events answers a claim 0.03 ms later.
type idle struct {
	waiting []chan struct{}
	coming  int // are woken, and have not locked yet
	spare   []chan struct{}
}

// nobody reports whether all are at work.
func (i *idle) nobody() bool { return len(i.waiting)+i.coming == 0 }

// wait unlocks mu until it is woken, and locks it again.
func (i *idle) wait(mu *sync.Mutex) {
	var turn chan struct{}
	if n := len(i.spare); n > 0 {
		turn, i.spare = i.spare[n-1], i.spare[:n-1]
	} else {
		turn = make(chan struct{}, 1)
	}
	i.waiting = append(i.waiting, turn)
	mu.Unlock()
	<-turn
	mu.Lock()
	i.coming--
	i.spare = append(i.spare, turn)
}

// wake lets the one go on who has waited for the shortest time.
func (i *idle) wake() {
	if n := len(i.waiting); n > 0 {
		i.waiting[n-1] <- struct{}{}
		i.waiting = i.waiting[:n-1]
		i.coming++
	}
}

// wakeAll lets all go on.
func (i *idle) wakeAll() {
	for len(i.waiting) > 0 {
		i.wake()
	}
}
