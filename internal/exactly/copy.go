package exactly

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/tail"
)

// progress is how far a unit has come, for a destination that keeps that itself. The unit moves it
// ahead before it hands events over; what is committed in the meantime it adds by itself. It
// implements delivery.Progress.
type progress struct {
	owner owner // the position that it is of

	mu     sync.Mutex
	sealed int64          // the last seal
	seq    string         // what assigned the ids
	head   int64          // as of the last seal
	open   tail.Ranges    // of which some may have been committed since
	rows   map[int64]bool // stored deliveries that are under way, or whose result is not written yet
	done   map[int64]int  // what was committed since, and may still be in open or in rows, with its replays
	doing  map[int64]int  // what the transaction of the last call of With delivers
}

// advance moves the progress to what the unit knows after a seal.
func (p *progress) advance(sealed, head int64, open tail.Ranges, running iter.Seq[int64], sequence string) {
	rows := make(map[int64]bool)
	for id := range running {
		rows[id] = true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sealed, p.head, p.open, p.rows, p.seq = sealed, head, open, rows, sequence
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
	c := positionCopy{Version: copyVersion, Owner: p.owner, Sealed: p.sealed, Head: p.head, Sequence: p.seq}
	for _, some := range []map[int64]int{p.done, p.doing} {
		for id, replays := range some {
			passed = append(passed, id)
			if p.rows[id] {
				c.Settled = append(c.Settled, settledRow{id, int64(replays)})
			}
		}
	}
	slices.Sort(passed)
	c.Open = p.open.Without(passed).String()
	return c.encode()
}

// Committed implements delivery.Progress.
func (p *progress) Committed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.Copy(p.done, p.doing)
	p.doing = nil
}

// copyVersion is the version of the format of copies. A reader of another version refuses it.
const copyVersion = 1

// positionCopy is a position as a destination keeps it.
type positionCopy struct {
	Version int   `json:"version"`
	Owner   owner `json:"of"`
	// Sealed is the seal on which it relies: the database has it, or has lost what the copy knows.
	Sealed int64  `json:"sealed"`
	Head   int64  `json:"head"`
	Open   string `json:"open"`
	// Sequence is what assigned these ids, as outbox_positions has it.
	Sequence string `json:"sequence"`
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

func (c *positionCopy) watermark() (tail.Watermark, error) {
	open, err := tail.ParseRanges(c.Open)
	return tail.Watermark{Head: c.Head, Open: open}, err
}

// decodeCopy reads a copy, nil if there is none.
func decodeCopy(b []byte) (*positionCopy, error) {
	if b == nil {
		return nil, nil
	}
	var c positionCopy
	err := json.Unmarshal(b, &c)
	switch {
	case err != nil:
	case c.Version != copyVersion:
		err = fmt.Errorf("it has version %d, and this notifyd knows version %d", c.Version, copyVersion)
	default:
		_, err = c.watermark()
	}
	if err != nil {
		return nil, fmt.Errorf("the position that the destination keeps cannot be read: %w: set transactional_id to an id of its own, or use the version of notifyd that wrote it", err)
	}
	return &c, nil
}
