package integration

import "sync"

// gate lets a handler answer while it is open.
type gate struct {
	mu  sync.Mutex
	way chan struct{} // closed while the gate is open
}

func newGate() *gate {
	g := &gate{way: make(chan struct{})}
	close(g.way)
	return g
}

// pass is closed once the gate is open.
func (g *gate) pass() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.way
}

func (g *gate) isOpen() bool {
	select {
	case <-g.pass():
		return true
	default:
		return false
	}
}

func (g *gate) open() {
	if !g.isOpen() {
		close(g.way) // only the plan opens and shuts
	}
}

func (g *gate) shut() {
	if g.isOpen() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.way = make(chan struct{})
	}
}
