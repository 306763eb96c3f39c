package position

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/notifyd/notifyd/internal/pgschema"
	"github.com/notifyd/notifyd/internal/tail"
)

// Former has the positions of a destination's shards at each change of their number, as outbox_positions.former has
// them. The current shards begin at the lowest head, and pass over the ids that former shards have done.
type Former []ShardPositions

// ShardPositions are the positions of the shards at one change, by shard number.
type ShardPositions []tail.Watermark

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
func (f Former) Passed(read tail.Watermark) tail.Watermark {
	for _, s := range f {
		for _, w := range s {
			read = read.Or(w)
		}
	}
	return read
}

// Finished reports whether a reader with that head and these gaps has passed all ids that former shards have done.
func (f Former) Finished(head int64, gaps tail.Ranges) bool {
	end := f.Head()
	return head >= end && (len(gaps) == 0 || gaps[0].From > end)
}

// storedWatermark is the format of a Watermark in the database.
type storedWatermark struct {
	Head int64  `json:"head"`
	Open string `json:"open"`
}

// String returns the text in the database.
func (f Former) String() string {
	stored := make([][]storedWatermark, len(f))
	for i, s := range f {
		for _, w := range s {
			stored[i] = append(stored[i], storedWatermark{w.Head, w.Open.String()})
		}
	}

	text, err := json.Marshal(stored)
	if err != nil {
		panic(err) // numbers and texts
	}

	return string(text)
}

// ParseFormer reads what String returns.
func ParseFormer(text string) (f Former, err error) {
	var stored [][]storedWatermark
	if err := json.Unmarshal([]byte(text), &stored); err != nil {
		return nil, fmt.Errorf("former positions: %w", err)
	}

	for _, parts := range stored {
		if len(parts) == 0 {
			return nil, fmt.Errorf("former positions: %q has none", text)
		}

		var s ShardPositions
		for _, w := range parts {
			open, err := tail.ParseRanges(w.Open)
			if err != nil {
				return nil, fmt.Errorf("former positions: %w", err)
			}
			s = append(s, tail.Watermark{Head: w.Head, Open: open})
		}

		f = append(f, s)
	}

	return f, nil
}
