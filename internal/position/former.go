package position

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/notifyd/notifyd/internal/tail"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// Former is how far the shards of a destination had come each time when their number changed, as outbox_positions.former has
// it. The shards of today begin at the lowest head, and pass over what is done.
type Former []Stand

// Stand is how far the shards had come at one change: the position of each, by its number.
type Stand []tail.Watermark

// Done reports whether a former shard has passed the event with this id and hash, to which it belonged.
func (f Former) Done(id, hash int64) bool {
	return slices.ContainsFunc(f, func(s Stand) bool { return s[outboxsql.ShardOf(hash, len(s))].Has(id) })
}

// Head returns the id above which nothing was done; that of no former shards is below all ids.
func (f Former) Head() int64 {
	head := int64(math.MinInt64)
	for _, s := range f {
		for _, w := range s {
			head = max(head, w.Head)
		}
	}
	return head
}

// Passed returns the ids that any of the former shards, or a reader that has read these, has passed.
func (f Former) Passed(read tail.Watermark) tail.Watermark {
	for _, s := range f {
		for _, w := range s {
			read = read.Or(w)
		}
	}
	return read
}

// Over reports whether nothing that is left to read was done by former shards: a reader with that head and these gaps is past it.
func (f Former) Over(head int64, gaps tail.Ranges) bool {
	end := f.Head()
	return head >= end && (len(gaps) == 0 || gaps[0].From > end)
}

// storedWatermark is a Watermark in the database.
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
		var s Stand
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
