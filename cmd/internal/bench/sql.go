package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/notifyd/notifyd/internal/store"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// statement is one statement of a round trip.
type statement struct {
	name    string
	params  [][]byte
	formats []int16
	// row is called for each row; nil: the rows do not matter.
	row func(values [][]byte) error
}

// fly sends prepared statements in one round trip, as the relay does.
func fly(ctx context.Context, conn *pgx.Conn, statements ...statement) (err error) {
	p := conn.PgConn().StartPipeline(ctx)
	defer func() { err = errors.Join(err, p.Close()) }()
	for i := range statements {
		s := &statements[i]
		p.SendQueryPrepared(s.name, s.params, inBinary(), s.formats)
	}
	if err := p.Sync(); err != nil {
		return err
	}
	for i := range statements {
		results, err := p.GetResults()
		if err != nil {
			return err
		}
		reader, ok := results.(*pgconn.ResultReader)
		if !ok {
			return fmt.Errorf("statement %s: expected rows, got %T", statements[i].name, results)
		}
		for statements[i].row != nil && reader.NextRow() {
			if err := statements[i].row(reader.Values()); err != nil {
				return err
			}
		}
		if _, err := reader.Close(); err != nil {
			return err
		}
	}
	return nil
}

func inBinary() []int16 { return []int16{1} }

// prepare prepares statements, name to text.
func prepare(ctx context.Context, conn *pgx.Conn, statements map[string]string) error {
	for name, sql := range statements {
		if _, err := conn.PgConn().Prepare(ctx, name, sql, nil); err != nil {
			return fmt.Errorf("prepare statement %s: %w", name, err)
		}
	}
	return nil
}

// payload returns a JSON string of n bytes that PostgreSQL cannot compress.
func payload(n int) string {
	const digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"
	text := make([]byte, max(n, 2))
	for i := range text {
		text[i] = digits[rand.IntN(len(digits))] //nolint:gosec // filling
	}
	text[0], text[len(text)-1] = '"', '"'
	return string(text)
}

// eventType is the type of all events of a bench.
const eventType = "bench.event"

// insertSQL inserts one event; $1 is the payload.
func insertSQL(schema string) string {
	return "INSERT INTO " + table(schema) + " (event_type, payload) VALUES ('" + eventType + "', $1)"
}

// drained waits until all events of the schema are settled, at most settleWithin.
func (e *env) drained(ctx context.Context, schema string, mode outboxsql.Mode) error {
	ctx, cancel := context.WithTimeoutCause(ctx, settleWithin, fmt.Errorf("events were left after %v", settleWithin))
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		left, err := e.unsettled(ctx, schema, mode)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		case left == 0:
			return nil
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// closeAll closes connections, also after ctx has ended.
func closeAll(ctx context.Context, conns []*pgx.Conn) {
	for _, conn := range conns {
		store.Close(ctx, conn)
	}
}

// int8Param is a bigint in binary.
func int8Param(v int64) []byte { return binaryAppend(nil, v) }

func binaryAppend(b []byte, v int64) []byte {
	return binary.BigEndian.AppendUint64(b, uint64(v)) //nolint:gosec // all 64 bits are kept
}

// int8Array is a bigint[] in binary.
func int8Array(b []byte, ids []int64) []byte {
	const oidInt8 = 20
	for _, v := range []uint32{1, 0, oidInt8, uint32(len(ids)), 1} { //nolint:gosec // a batch is small
		b = binary.BigEndian.AppendUint32(b, v)
	}
	for _, id := range ids {
		b = binary.BigEndian.AppendUint32(b, 8)
		b = binaryAppend(b, id)
	}
	return b
}
