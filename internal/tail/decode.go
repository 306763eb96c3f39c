package tail

import (
	"fmt"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/wire"
)

// The columns of a read, in order.
const (
	colID = iota
	colType
	colAggregateType
	colAggregateID
	colPayload
	colHeaders
	colCreatedAt
	colDelay
	colTrace
	colBytes
	colPayloadBytes
	colContentType
	columns
)

// formats requests headers as text: binary jsonb begins with a version byte. Text and json are the
// same in both formats.
func formats() []int16 {
	f := make([]int16, columns) // text
	for _, col := range []int{colID, colCreatedAt, colDelay, colBytes, colPayloadBytes} {
		f[col] = wire.Binary
	}
	return f
}

// decoder converts the rows of a batch into events whose payloads and aggregate ids share memory.
type decoder struct {
	names    *wire.Names // of all batches
	payloads wire.Arena
	ids      wire.Strings
	typ, agg string // of the previous row: often the same
}

// event decodes a wanted row, except its id.
func (d *decoder) event(e *delivery.Event, row [][]byte) (err error) {
	if string(row[colType]) != d.typ {
		d.typ = d.names.Intern(row[colType])
	}
	if string(row[colAggregateType]) != d.agg {
		d.agg = d.names.Intern(row[colAggregateType])
	}
	e.Type, e.AggregateType = d.typ, d.agg
	e.AggregateID = d.ids.Keep(row[colAggregateID])
	payload, kind := d.names.Payload(row[colPayload], row[colPayloadBytes], row[colContentType])
	e.Payload, e.ContentType = d.payloads.Keep(payload), kind
	if row[colHeaders] != nil || row[colTrace] != nil {
		e.Headers = wire.Traced(wire.DecodeHeaders(row[colHeaders]), row[colTrace])
	}
	if e.CreatedAt, err = wire.DecodeTime(row[colCreatedAt]); err != nil {
		return fmt.Errorf("event %d: created_at: %w", e.ID, err)
	}
	return nil
}

// delay returns how long a row must still wait.
func delay(raw []byte) (time.Duration, error) {
	us, err := wire.DecodeInt8(raw)
	return time.Duration(us) * time.Microsecond, err
}
