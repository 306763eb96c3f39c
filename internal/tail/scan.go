package tail

import (
	"context"
	"math"

	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/wire"
)

// Scan reads ranges in which nothing is open any more: what a reader has passed. The zero value is ready. One goroutine
// uses it.
type Scan struct {
	names wire.Names
	row   int     // assumed size of a row, in bytes; 0 before the first read
	rare  float64 // assumed number of rows read per event, at least 1
}

// Read reads the next events after head, up to an id that is not above the head of a reader. It returns the id up to which
// all events have been read now. q.Bytes must be above 0; q.Stay and q.Assigned do not matter.
func (s *Scan) Read(ctx context.Context, conn *session.Conn, head, upto int64, q Query) (b Batch, now int64, err error) {
	if s.row == 0 {
		s.row, s.rare = rowGuess, 1
	}
	p := pass{query: q, limit: q.Limit, upto: upto, head: head, last: math.MinInt64}
	p.query.Assigned = upto
	if len(q.Skip) > 0 {
		p.limit = int(min(float64(q.Rows), max(1, float64(q.Limit)*s.rare)))
	}
	p.limit = min(p.limit, max(1, 2*q.Bytes/s.row))
	p.decoder.Names = &s.names
	if err := p.read(ctx, conn, nil, shape.statement); err != nil {
		return Batch{}, head, err
	}
	if p.rows > 0 {
		s.row = max(1, p.size/p.rows, s.row/2)
		s.rare = float64(p.batch.Seen) / float64(max(1, len(p.batch.Events)))
	}
	if p.cut || p.rows >= p.limit {
		return p.batch, p.last, nil
	}
	return p.batch, upto, nil
}
