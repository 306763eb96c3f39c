package exactly

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/idset"
)

// progress is the progress of a shard for a destination that keeps a copy of its position. The shard moves it ahead
// before it hands events over, and it adds the events that are committed meanwhile. It implements delivery.Progress.
type progress struct {
	owner owner // the owner of the position

	mu         sync.Mutex
	checkpoint int64           // the last checkpoint
	seq        string          // the sequence that assigned the ids
	at         idset.Watermark // at the last checkpoint; some open ids may have been committed since
	rows       map[int64]bool  // stored deliveries in flight, or with an unwritten result
	done       map[int64]int   // committed since, and possibly still in open or in rows, with the number of replays
	doing      map[int64]int   // delivered by the transaction of the last call of With
}

// advance moves the progress to the shard's state after a checkpoint.
func (p *progress) advance(checkpoint int64, at idset.Watermark, running iter.Seq[int64], sequence string) {
	rows := make(map[int64]bool)
	for id := range running {
		rows[id] = true
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	p.checkpoint = checkpoint
	p.at = at
	p.rows = rows
	p.seq = sequence
	maps.DeleteFunc(p.done, func(id int64, _ int) bool { return !rows[id] && !at.Open.Contains(id) })
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
	c := positionCopy{Version: copyVersion, Owner: p.owner, Checkpoint: p.checkpoint, Sequence: p.seq}
	for _, some := range []map[int64]int{p.done, p.doing} {
		for id, replays := range some {
			passed = append(passed, id)
			if p.rows[id] {
				c.Settled = append(c.Settled, settledRow{id, int64(replays)})
			}
		}
	}

	slices.Sort(passed)
	c.Watermark = idset.Watermark{Head: p.at.Head, Open: p.at.Open.Without(passed)}

	return c.encode()
}

// Committed implements delivery.Progress.
func (p *progress) Committed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.Copy(p.done, p.doing)
	p.doing = nil
}

// copyVersion is the version of the format of copies. A reader of another version refuses the copy.
const copyVersion = 1

// positionCopy is a position as a destination stores it.
type positionCopy struct {
	Version int   `json:"version"`
	Owner   owner `json:"of"`
	// Checkpoint is the checkpoint on which the copy relies: the database has it, or has lost ids that the copy has.
	Checkpoint int64 `json:"sealed"`
	idset.Watermark
	// Sequence identifies the sequence that assigned these ids, as outbox_positions has it.
	Sequence string `json:"sequence"`
	// Settled are deliveries of rows that succeeded; the rows may still exist.
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

// decodeCopy reads a copy, nil without one.
func decodeCopy(b []byte) (*positionCopy, error) {
	if b == nil {
		return nil, nil
	}

	var c positionCopy
	err := json.Unmarshal(b, &c)
	if err == nil && c.Version != copyVersion {
		err = fmt.Errorf("it has version %d, and this notifyd knows version %d", c.Version, copyVersion)
	}
	if err != nil {
		return nil, fmt.Errorf("read the destination's position copy: %w: "+
			"set another transactional_id, or use the version of notifyd that wrote the copy", err)
	}

	return &c, nil
}
