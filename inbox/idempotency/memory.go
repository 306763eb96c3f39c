package idempotency

import (
	"context"
	"sync"
	"time"
)

// Memory is a [Store] for tests and for services of a single process that may
// forget their keys when they end. Create it with [NewMemory].
type Memory struct {
	mu      sync.Mutex
	entries map[string]memoryEntry
	sweepAt int // the number of entries at which expired ones are removed
}

type memoryEntry struct {
	claim  Claim
	done   bool
	answer []byte
	until  time.Time
}

// minSweep keeps a small store from being swept too often.
const minSweep = 1024

// NewMemory returns an empty store. It needs no closing.
func NewMemory() *Memory {
	return &Memory{entries: make(map[string]memoryEntry), sweepAt: minSweep}
}

// Begin implements [Store].
func (m *Memory) Begin(_ context.Context, c Claim, lease time.Duration) (Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.get(c.Key)
	switch {
	case ok && e.done:
		return Entry{State: Done, Fingerprint: e.claim.Fingerprint, Answer: e.answer}, nil
	case ok && e.claim.Token != c.Token:
		return Entry{State: InProgress, Fingerprint: e.claim.Fingerprint}, nil
	}
	m.put(memoryEntry{claim: c, until: time.Now().Add(lease)})
	return Entry{State: Taken}, nil
}

// Settle implements [Store].
func (m *Memory) Settle(_ context.Context, c Claim, change Change) error {
	m.mu.Lock()
	defer m.mu.Unlock()

	e, ok := m.get(c.Key)
	if ok && e.claim.Token != c.Token {
		return ErrLost
	}

	switch change.Action {
	case Finish:
		m.put(memoryEntry{claim: c, done: true, answer: change.Answer, until: time.Now().Add(change.For)})
	case Release:
		if ok && e.done {
			return ErrLost
		}
		delete(m.entries, c.Key)
	default:
		if !ok || e.done {
			return ErrLost
		}
		e.until = time.Now().Add(change.For)
		m.entries[c.Key] = e
	}

	return nil
}

// get returns an entry that has not expired.
func (m *Memory) get(key string) (memoryEntry, bool) {
	e, ok := m.entries[key]
	return e, ok && time.Now().Before(e.until)
}

// put also removes expired entries, each time the store has doubled.
func (m *Memory) put(e memoryEntry) {
	m.entries[e.claim.Key] = e
	if len(m.entries) < m.sweepAt {
		return
	}
	now := time.Now()
	for key, e := range m.entries {
		if !now.Before(e.until) {
			delete(m.entries, key)
		}
	}
	m.sweepAt = max(minSweep, 2*len(m.entries))
}
