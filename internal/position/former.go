package position

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/pgschema"
)

// Former has the positions of a destination's shards at each change of their number, as outbox_positions.former has
// them. The current shards begin at the lowest head, and pass over the ids that former shards have done.
type Former []ShardPositions

// ShardPositions are the positions of the shards at one change, by shard number.
type ShardPositions []idset.Watermark

// Done reports whether the former shard of the event with this id and hash has passed it.
func (f Former) Done(id, hash int64) bool {
	return slices.ContainsFunc(f, func(s ShardPositions) bool { return s[pgschema.ShardOf(hash, len(s))].Has(id) })
}

// Head returns the id above which former shards have done nothing; without former shards it is below all ids.
func (f Former) Head() int64 {
	head := int64(math.MinInt64)
	for _, s := range f {
		for _, w := range s {
			head = max(head, w.Head)
		}
	}

	return head
}

// Passed returns the ids that any former shard, or a reader with the given watermark, has passed.
func (f Former) Passed(read idset.Watermark) idset.Watermark {
	for _, s := range f {
		for _, w := range s {
			read = read.Or(w)
		}
	}
	return read
}

// Finished reports whether a reader with this watermark has passed all ids that former shards have done.
func (f Former) Finished(read idset.Watermark) bool { return read.Lowest() >= f.Head() }

// String returns the text in the database.
func (f Former) String() string {
	text, err := json.Marshal(append(Former{}, f...)) // never null
	if err != nil {
		panic(err) // numbers and texts
	}

	return string(text)
}

// ParseFormer reads what String returns.
func ParseFormer(text string) (f Former, err error) {
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		return nil, fmt.Errorf("former positions: %w", err)
	}

	if slices.ContainsFunc(f, func(s ShardPositions) bool { return len(s) == 0 }) {
		return nil, fmt.Errorf("former positions: %q has none", text)
	}

	return f, nil
}
