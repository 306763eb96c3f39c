package stream

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/notifyd/notifyd/delivery"
)

// progress is how far a unit has come, for a destination that keeps that itself. The unit moves it
// ahead before it hands events over; what is committed in the meantime it adds by itself. It
// implements delivery.Progress.
type progress struct {
	mu      sync.Mutex
	created string         // when the position was made: a destination that was forgotten begins anew
	sealed  int64          // the last seal
	head    int64          // as of the last seal
	open    Ranges         // of which some may have been committed since
	rows    map[int64]bool // stored deliveries that are under way, or whose result is not written yet
	done    map[int64]int  // what was committed since, and may still be in open or in rows, with its replays
	doing   map[int64]int  // what the transaction of the last call of With delivers
}

// advance moves the progress to what the unit knows after a seal.
func (p *progress) advance(sealed, head int64, open Ranges, held map[int64]string) {
	rows := make(map[int64]bool, len(held))
	for id := range held {
		rows[id] = true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sealed, p.head, p.open, p.rows = sealed, head, open, rows
	maps.DeleteFunc(p.done, func(id int64, _ int) bool { return !rows[id] && !open.Contains(id) })
}

// With implements delivery.Progress.
func (p *progress) With(events []*delivery.Event) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.doing = make(map[int64]int, len(events))
	for _, e := range events {
		p.doing[e.ID] = e.Replay
	}
	passed := make([]int64, 0, len(p.done)+len(p.doing))
	c := positionCopy{Sealed: p.sealed, Created: p.created, Head: p.head}
	for _, some := range []map[int64]int{p.done, p.doing} {
		for id, replays := range some {
			passed = append(passed, id)
			if p.rows[id] {
				c.Settled = append(c.Settled, settledRow{id, int64(replays)})
			}
		}
	}
	slices.Sort(passed)
	c.Open = p.open.without(passed).String()
	return c.encode()
}

// Committed implements delivery.Progress.
func (p *progress) Committed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.Copy(p.done, p.doing)
	p.doing = nil
}

// positionCopy is a position as a destination keeps it.
type positionCopy struct {
	// Sealed is the seal on which it relies: the database has it, or has lost what the copy knows.
	Sealed  int64  `json:"sealed"`
	Created string `json:"created"`
	Head    int64  `json:"head"`
	Open    string `json:"open"`
	// Settled are stored deliveries that were delivered and may still be there.
	Settled []settledRow `json:"settled,omitempty"`
}

// settledRow is the id of an event and how often its delivery was replayed.
type settledRow [2]int64

func (c *positionCopy) encode() []byte {
	b, err := json.Marshal(c)
	if err != nil {
		panic(fmt.Sprintf("bug: numbers and texts have no JSON: %v", err))
	}
	return b
}

func (c *positionCopy) cut() (cut, error) {
	open, err := ParseRanges(c.Open)
	return cut{head: c.Head, open: open}, err
}

// decodeCopy reads a copy, nil if there is none.
func decodeCopy(b []byte) (*positionCopy, error) {
	if b == nil {
		return nil, nil
	}
	var c positionCopy
	if err := json.Unmarshal(b, &c); err != nil {
		return nil, fmt.Errorf("the position that the destination keeps: %w", err)
	}
	if _, err := c.cut(); err != nil {
		return nil, fmt.Errorf("the position that the destination keeps: %w", err)
	}
	return &c, nil
}

// both returns what one of two cuts, or both, has seen.
func (c cut) both(o cut) cut {
	head := max(c.head, o.head)
	mine, others := slices.Clone(c.open), slices.Clone(o.open)
	mine.Add(Range{c.head + 1, head})
	others.Add(Range{o.head + 1, head})
	return cut{head, mine.and(others)}
}
