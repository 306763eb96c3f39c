package store

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/dispatch"
	"github.com/notifyd/notifyd/internal/wire"
)

// lateFormats are the formats of sqlLate.
func lateFormats() []int16 { return []int16{wire.Binary, wire.Text, wire.Text} }

// lineFormats are the formats of sqlLines.
func lineFormats() []int16 {
	return append(rowFormats(), wire.Binary, wire.Text, wire.Binary, wire.Binary, wire.Binary)
}

func lineParams(q dispatch.Query) [][]byte {
	names, keys, high := make([]string, len(q.Lines)), make([]string, len(q.Lines)), make([]int64, len(q.Lines))
	for i, l := range q.Lines {
		names[i], keys[i], high[i] = l.Destination, l.Key, l.Bound
	}
	return [][]byte{
		wire.TextArray(names), wire.TextArray(keys), wire.AppendInt8Array(nil, high), wire.Int8(int64(q.PerLine)), wire.TextArray(q.Blocking),
	}
}

func (s *Session) readLate(f *flight) (late []dispatch.Late, err error) {
	reader, err := f.next()
	if err != nil {
		return nil, err
	}
	for reader.NextRow() {
		values := reader.Values()
		id, err := wire.DecodeInt8(values[0])
		if err != nil {
			return nil, err
		}
		late = append(late, dispatch.Late{ID: id, AggregateType: s.names.Intern(values[1]), AggregateID: string(values[2])})
	}
	_, err = reader.Close()
	return late, err
}

// Columns of sqlLines behind those of sqlDue.
const (
	columnLine = dueTraceColumn + 1 + iota
	columnState
	columnDue
	columnBeyond
	columnLocked
)

// readLines takes from the head of each line what may be delivered now.
func (s *Session) readLines(f *flight, q dispatch.Query) (claimed dispatch.Claimed, err error) {
	reader, err := f.next()
	if err != nil {
		return claimed, err
	}
	claimed.Heads, claimed.Firsts = make([]dispatch.LineState, len(q.Lines)), make([]int64, len(q.Lines))
	ended := make([]bool, len(q.Lines)) // nothing more may be taken
	cut := false
	a := &wire.Arena{}
	for reader.NextRow() {
		values := reader.Values()
		n, err := wire.DecodeInt8(values[columnLine])
		if err != nil || n < 1 || int(n) > len(q.Lines) {
			return claimed, fmt.Errorf("line %d of %d: %w", n, len(q.Lines), err)
		}
		i := n - 1
		if ended[i] {
			continue
		}
		w, err := s.readWork(values, a, dispatch.SourceLines)
		if err != nil {
			return claimed, err
		}
		state := headOf(values, claimed.Heads[i] == dispatch.LineEmpty)
		if claimed.Heads[i] == dispatch.LineEmpty {
			claimed.Heads[i], claimed.Firsts[i] = state, w.Event.ID
		}
		if ended[i] = state != dispatch.LineClaimed; ended[i] {
			continue
		}
		if size := len(w.Event.Payload); len(claimed.Work) > 0 && q.Bytes > 0 && claimed.Bytes+size > q.Bytes {
			for i := range ended {
				ended[i] = true
			}
			cut = true
			continue
		}
		claimed.Work, claimed.Bytes = append(claimed.Work, w), claimed.Bytes+len(w.Event.Payload)
	}
	for i, head := range claimed.Heads {
		if cut && head == dispatch.LineEmpty {
			claimed.Heads[i] = dispatch.LineClaimed // to be looked at again
		}
	}
	_, err = reader.Close()
	return claimed, err
}

// headOf says whether a row of a line may be delivered, and why not.
func headOf(values [][]byte, first bool) dispatch.LineState {
	yes := func(column int) bool { return values[column][0] != 0 }
	state := dispatch.EntryState(values[columnState])
	switch {
	case yes(columnBeyond):
		return dispatch.LineBeyond
	case state == dispatch.EntryDead:
		return dispatch.LineBlocked
	case first && state == dispatch.EntryRetry && !yes(columnDue):
		return dispatch.LineWaiting
	case !yes(columnLocked):
		return dispatch.LineLocked
	default:
		return dispatch.LineClaimed
	}
}

// decodeXids reads a bigint[] of transaction ids; NULL is none.
func decodeXids(raw []byte) ([]uint64, error) {
	const header, item = 20, 12 // of a binary array with one dimension, and of each element
	if raw == nil {
		return nil, nil
	}
	if len(raw) < header || (len(raw)-header)%item != 0 {
		return nil, fmt.Errorf("array of %d bytes", len(raw))
	}
	xids := make([]uint64, 0, (len(raw)-header)/item)
	for rest := raw[header:]; len(rest) > 0; rest = rest[item:] {
		xids = append(xids, binary.BigEndian.Uint64(rest[item-8:item]))
	}
	return xids, nil
}

// storedPage is how many lines are read at a time.
const storedPage = 10_000

// sqlStored reads the index by key from end to end: skipping from key to key would
// take longer where lines are short.
const sqlStored = `SELECT DISTINCT ON (destination, ordering_key) destination, ordering_key, event_id, state FROM outbox_deliveries
WHERE ordering_key IS NOT NULL AND (destination, ordering_key) > ($1, $2)
AND (state <> 'dead' OR destination = ANY($3))
AND ($5::int[] IS NULL OR hashtext(left(ordering_key, 32)) & 63 = ANY($5))
ORDER BY destination, ordering_key, event_id LIMIT $4`

// Stored implements dispatch.LineReader.
func (k *Keeper) Stored(ctx context.Context, blocking []string, slots []int32, f func(dispatch.StoredLine)) error {
	next := dispatch.StoredLine{}
	for {
		n := 0
		err := k.do(ctx, "look which aggregates have deliveries that wait", func(ctx context.Context, c *pgx.Conn) error {
			rows, err := c.Query(ctx, sqlStored, next.Destination, next.Key, append([]string{}, blocking...), storedPage, slots)
			if err != nil {
				return err
			}
			_, err = pgx.ForEachRow(rows, []any{&next.Destination, &next.Key, &next.EventID, &next.State}, func() error {
				f(next)
				n++
				return nil
			})
			return err
		})
		if err != nil || n < storedPage {
			return err
		}
	}
}

var _ dispatch.LineReader = (*Keeper)(nil)
